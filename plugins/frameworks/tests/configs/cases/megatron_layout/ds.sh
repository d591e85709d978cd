# Options of https://github.com/yanring/Megatron-MoE-ModelZoo for DeepSeek-V3 (256 H100)
#SBATCH --nodes=32
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
ARGS=()
ARGS+=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 16 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1)
ARGS+=(--pipeline-model-parallel-layout "Et*3|(tt|)*29m|L")
ARGS+=(--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128)
ARGS+=(--num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8)
ARGS+=(--multi-latent-attention --mtp-num-layers 1 --seq-length 4096 --max-position-embeddings 4096)
ARGS+=(--micro-batch-size 1 --global-batch-size 8192 --bf16 --fp8-format e4m3 --fp8-recipe blockwise)
ARGS+=(--recompute-granularity selective --recompute-modules mla_up_proj moe mlp layernorm --use-distributed-optimizer)
ARGS+=(--swiglu --untie-embeddings-and-output-weights)
srun --mpi=pmix -l python pretrain_gpt.py "${ARGS[@]}"
