#!/bin/bash
# Written for this test; the figures are of https://github.com/NVIDIA/Megatron-LM examples/gpt3 (345M)
GPUS_PER_NODE=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
OPTS="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
      --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 100"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 1 pretrain_gpt.py $OPTS \
    --tensor-model-parallel-size $TENSOR_PARALLEL \
    --fp16 --pipeline-model-parallel-size 2 \
    --turbo-charge-attention \
    --pipeline-model-parallel-size 4 \
    --bf16
