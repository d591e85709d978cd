NNODES=32
torchrun --nnodes $NNODES --nproc_per_node=8 --rdzv_backend c10d -m torchtitan.train \
  --job.config_file ./llama3_70b.toml --training.local_batch_size=16 --training.global_batch_size 512 \
  --activation_checkpoint.mode selective
