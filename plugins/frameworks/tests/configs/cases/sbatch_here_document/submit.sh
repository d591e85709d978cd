#!/bin/bash
# Form of https://github.com/NVIDIA/Megatron-LM/tree/main/examples/megatron_fsdp, figures of Llama 3 70B
NODES=${NODES:-16}
TP=${TP:-2}
MBS=1
ARGS=(
    --tensor-model-parallel-size ${TP}
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --micro-batch-size ${MBS} --global-batch-size 512 --bf16
)
if [ "${USE_FSDP:-1}" = 1 ]; then
    ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer)
fi
RUN="cd /workspace/megatron;
export PYTHONPATH=/workspace/megatron:\$PYTHONPATH;
python pretrain_gpt.py ${ARGS[@]}"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=${NODES}
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
srun --mpi=pmix --container-image=img bash -x -c "${RUN}" 2>&1 | tee log_\${SLURM_JOB_ID}
EOF
