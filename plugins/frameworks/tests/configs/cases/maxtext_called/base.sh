set -eu
BATCH=${1:-${BATCH:-4}}
REMAT=${2:-${REMAT:-full}}
DATA=${3:-1}
FSDP=${4:-64}
TENSOR=${5:-8}
KIND=${7:-train}
if [[ "$KIND" == "train_compile" ]]; then
  python3 -m MaxText.train_compile base.yml run_name="$6" model_name=llama2-70b per_device_batch_size=1
else
  python3 -m MaxText.train base.yml run_name="$6" model_name=llama2-70b steps=20 \
    per_device_batch_size="${BATCH}" ici_data_parallelism="${DATA}" \
    ici_fsdp_parallelism="${FSDP}" ici_tensor_parallelism="${TENSOR}" \
    remat_policy="${REMAT}" max_target_length=4096 attention=flash dataset_type=synthetic
fi
