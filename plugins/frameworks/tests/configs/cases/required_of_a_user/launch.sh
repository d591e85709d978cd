#!/bin/bash
# Form of https://github.com/NVIDIA/dgxc-benchmarking deepseek_v3/pretrain/torchtitan
GPU_TYPE=${GPU_TYPE:?set GPU_TYPE}
REPO=$PWD
MODE=${MODE:-full}
if [[ $GPU_TYPE == "h100" ]]; then
    PIPELINE=8
    MODE=selective
elif [[ $GPU_TYPE == "b200" ]]; then
    PIPELINE=1
else
    echo "only h100 and b200" >&2
    exit 1
fi
CMD="cd $REPO; ulimit -c 0; LOCAL_RANK=\$SLURM_LOCALID; \
python -m torchtitan.train --job.config_file=$REPO/base.toml \
--parallelism.pipeline_parallel_degree=$PIPELINE --activation_checkpoint.mode=$MODE --training.seq_len=8192"
srun --container-image=a bash -c "$CMD"
