#!/bin/bash
# Form of https://github.com/hpcaitech/ColossalAI examples/language/llama/scripts/benchmark_70B/3d.sh
HOSTFILE=$(realpath hosts.txt)
TP=4
colossalai run --nproc_per_node 8 --hostfile $HOSTFILE benchmark.py \
  -c 70b -p 3d -g -x -b 16 --mbs 2 --tp $TP --pp $((TP / 2)) --zero 1 -l 4096 \
  --mixed_precision bf16
