# flags of https://github.com/AI-Hypercomputer/maxtext end_to_end and configs/v5p
export LIBTPU_INIT_ARGS="--xla_tpu_enable_data_parallel_all_reduce_opt=true"
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-70b run_name=$RUNNAME \
    steps=30 per_device_batch_size=2 enable_checkpointing=false async_checkpointing=false \
    remat_policy=save_qkv_proj ici_fsdp_parallelism=64 ici_tensor_parallelism=1 dcn_data_parallelism=2 \
    max_target_length=4096 attention='flash' dtype=bfloat16 quantization=int8 dataset_type=synthetic
