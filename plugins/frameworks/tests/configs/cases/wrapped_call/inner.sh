#!/bin/bash
TP=$1; SIZE=${2:-13B}
MBS=${MBS:-1}
function sizes() {
    case "$1" in
        7B|7b) L=32; H=4096; A=32 ;;
        13B)   L=40; H=5120; A=40 ;;
    esac
}
sizes $SIZE
NGPU=$(echo "8 * 2" | bc)
mpirun -np $NGPU -x NCCL_DEBUG python pretrain_gpt.py --tensor-model-parallel-size=$TP \
  --num-layers=$L --hidden-size=$H --num-attention-heads=$A --seq-length=$SEQ \
  --max-position-embeddings=$SEQ --micro-batch-size=$MBS --global-batch-size=$((MBS * NGPU / TP * 8)) --bf16
