#!/usr/bin/env bash
# small on 8 x cpu, from plan.json.
# Started once on every node. NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT say which.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

NNODES=${NNODES:-4}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}
export NNODES NODE_RANK MASTER_ADDR MASTER_PORT
GPUS_PER_NODE=2
export CUDA_DEVICE_MAX_CONNECTIONS=1

ARGS=(
  # model
  --num-layers 4
  --hidden-size 64
  --ffn-hidden-size 160
  --num-attention-heads 4
  --kv-channels 16
  --group-query-attention
  --num-query-groups 2
  --seq-length 64
  --max-position-embeddings 64
  --position-embedding-type rope
  --rotary-base 10000
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --vocab-size 256
  # parallelism
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --num-virtual-stages-per-pipeline-rank 2
  --context-parallel-size 1
  --sequence-parallel
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  # batch, precision, recomputation
  --micro-batch-size 1
  --global-batch-size 8
  --bf16
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  # data and optimizer: yours
  --mock-data
  --tokenizer-type NullTokenizer
  --split 99,1,0
  --train-iters 100
  --lr 0.0001
  --lr-decay-style constant
  --clip-grad 1.0
  --weight-decay 0.1
  --eval-iters 0
  --log-interval 1
  --log-throughput
)

exec torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" \
  --nproc-per-node "$GPUS_PER_NODE" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}/pretrain_gpt.py" "${ARGS[@]}" "$@"
