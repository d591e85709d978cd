#!/bin/bash
# Options and figures of https://github.com/NVIDIA/Megatron-LM/tree/core_v0.12.0/examples/mixtral
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES)
MODEL_ARGS=(
    --use-mcore-models --disable-bias-linear
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32
    --init-method-std 0.01 --normalization RMSNorm --position-embedding-type rope
    --swiglu --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 8
    --no-masked-softmax-fusion --rotary-base 1000000
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000 --bf16 --overlap-grad-reduce --overlap-param-gather)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
if [ -n "${WANDB_API_KEY}" ]; then
    TRAINING_ARGS+=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]}
