#!/bin/bash
#SBATCH -N 16 -p batch --ntasks-per-node 8
#SBATCH --gpus-per-node=8
srun python megatron_gpt_pretraining.py --config-path=conf --config-name=megatron_gpt_config \
  trainer.num_nodes=$SLURM_JOB_NUM_NODES model.tensor_model_parallel_size=4 ++model.sequence_parallel=True \
  model.global_batch_size=512 model.micro_batch_size=2
