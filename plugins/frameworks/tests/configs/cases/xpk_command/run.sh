#!/bin/bash
# Form of https://github.com/AI-Hypercomputer/tpu-recipes training/ironwood
export IMAGE=""
MAXTEXT_ARGS="\
model_name=llama3.1-70b per_device_batch_size=2 max_target_length=8192 \
ici_fsdp_parallelism=-1 remat_policy=custom quantization=fp8_full opt_type=adamw attention=flash \
run_name=${NAME}"
xpk workload create --cluster=$CLUSTER --device-type=tpu7x-4x4x4 --num-slices=2 --docker-image="${IMAGE}" \
  --command="set -e && export JAX_PLATFORMS='tpu,cpu' && \
python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml ${MAXTEXT_ARGS} | tee train.log"
