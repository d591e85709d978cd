#!/bin/bash
# Form of https://github.com/AI-Hypercomputer/gpu-recipes training/a4x, megatron-bridge-gke
worker=$(cat <<- EOM
  cd /opt/Megatron-Bridge ;
  numactl --cpunodebind=\$((LOCAL_RANK/2)) \
  python scripts/performance/setup_experiment.py \
    --model_family_name qwen \
    --model_recipe_name qwen3_235b_a22b \
    --gpu gb200 --num_gpus 256 --gpus_per_node 4 \
    --compute_dtype fp8_mx \
    --seq_length 4096 \
    --global_batch_size 8192 --micro_batch_size 1 \
    --tensor_model_parallel_size 1 --pipeline_model_parallel_size 8 \
    --context_parallel_size 1 --expert_model_parallel_size 32
EOM
)
echo "$worker" > worker.sh
torchrun --nproc-per-node="4" --nnodes="64" --node_rank="${JOB_COMPLETION_INDEX}" \
  --no-python bash worker.sh
