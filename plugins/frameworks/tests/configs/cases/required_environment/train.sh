#!/bin/bash
# Form of https://github.com/NVIDIA/Megatron-LM/tree/main/examples/multimodal, figures of Mistral 7B
if [[ -z $WORKSPACE ]]; then
    echo "Please set WORKSPACE"
    exit 1
fi
[ $# -lt 1 ] && { echo usage; exit 2; }
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP_FROM_USER=$2; shift 2 ;;
    *) exit 1 ;;
  esac
done
TP=${TP_FROM_USER:-4}
if [ "$2" = small ]; then MBS=1; GBS=32; else MBS=2; GBS=32; fi
OPTIONS=" --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 \
  --tensor-model-parallel-size ${TP} --micro-batch-size ${MBS} --global-batch-size ${GBS} \
  --seq-length 1024 --max-position-embeddings 4096 --use-distributed-optimizer --bf16"
torchrun --nproc_per_node 8 train.py ${OPTIONS}
