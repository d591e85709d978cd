#!/usr/bin/env bash
# Form of https://github.com/alibaba/Pai-Megatron-Patch examples, figures of Qwen2 7B
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
source $CURRENT_DIR/env.sh
source ${CURRENT_DIR}/model/qwen2_7b.sh
. "$CURRENT_DIR/parallel.sh" 2 1

if [ $AC = full ]; then
    activation_options=" --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_options=" --recompute-activations"
elif [ $AC = none ]; then
    activation_options=" "
fi
if [ $PR = fp16 ]; then pr_options=" --fp16 --initial-loss-scale 65536"; elif [ $PR = bf16 ]; then pr_options=" --bf16"; fi
if [ $DO = true ]; then do_options=" --use-distributed-optimizer"; elif [ $DO = false ]; then do_options=" "; fi
if [ "$SP" = true ] && [ $TP -gt 1 ]; then sp_options=" --sequence-parallel"; fi

run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_qwen.py ${model_options} ${parallel_options} ${activation_options} ${pr_options} ${do_options} ${sp_options} --swiglu --train-iters 1000"
echo ${run_cmd}
eval ${run_cmd}
