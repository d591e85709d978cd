#!/bin/bash
# Figures of table 1 of https://arxiv.org/abs/2104.04473, form of the scripts under
# https://github.com/NVIDIA/Megatron-LM/tree/v2.6/examples/sc21
declare -A LAYERS=( [39B]=48 [76B]=60 )
declare -A HIDDEN=( [39B]=8192 [76B]=10240 )
M=76B
let "NODES = 1024 / 8"
VP=5
EXTRA=""
[[ $M == 76* ]] && EXTRA="--num-layers-per-virtual-pipeline-stage $VP"
mpirun -np $((NODES*8)) --bind-to none python -u pretrain_gpt.py \
   --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \
   --num-layers ${LAYERS[$M]} --hidden-size ${HIDDEN[$M]} --num-attention-heads 80 \
   --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 1792 \
   --DDP-impl local --activations-checkpoint-method uniform --fp16 --loss-scale 8192 $EXTRA
