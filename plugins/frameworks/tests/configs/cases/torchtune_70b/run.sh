# Form and figures of https://github.com/pytorch/torchtune recipes/configs/llama3_3/70B_full_multinode.yaml
export RUN=${RUN:-a}
tune run --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d full_finetune_distributed \
  --config configs/70B_full batch_size=2 epochs=1
