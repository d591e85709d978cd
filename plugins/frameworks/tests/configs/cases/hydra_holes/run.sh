#!/bin/bash
# Form of https://github.com/NVIDIA/NeMo-Aligner examples/nlp/gpt, with degrees that a user sets
srun -N 4 --ntasks-per-node 8 python examples/nlp/gpt/train_gpt_sft.py --config-path=conf --config-name=sft \
  trainer.num_nodes=4 trainer.devices=8 model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=2
