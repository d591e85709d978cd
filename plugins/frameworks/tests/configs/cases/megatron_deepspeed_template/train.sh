#!/bin/bash
# Form of https://github.com/deepspeedai/Megatron-DeepSpeed examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh
BATCH=8
GLOBAL=512
EXPERTS=128
GPUS=64
parallel() {
  if [ $EXPERTS -gt $GPUS ]; then echo $GPUS; else echo $EXPERTS; fi
}
write_config() {
  sed "s/BATCH_ALL/${GLOBAL}/" $1 | sed "s/BATCH_ONE/${BATCH}/" \
    | sed -e "s/STAGE/$2/g" -e "s#HALF#true#" > ds_run.json
}
write_config template.json 1
OPTIONS=" --tensor-model-parallel-size 1 --num-experts ${EXPERTS} --moe-expert-parallel-size 64 \
  --micro-batch-size ${BATCH} --global-batch-size ${GLOBAL} --num-layers 24 --hidden-size 2048 \
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --fp16 \
  --checkpoint-activations --deepspeed-activation-checkpointing"
deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py $OPTIONS --deepspeed \
  --deepspeed_config ds_run.json --no-pipeline-parallel
