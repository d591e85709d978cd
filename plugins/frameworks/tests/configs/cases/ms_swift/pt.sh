# Form of https://github.com/modelscope/ms-swift examples/train
# A size of the batch that an argument may change.
BATCH=64
if [ -n "${1}" ]; then
    BATCH=$1
fi
n=4
NPROC_PER_NODE=$n CUDA_VISIBLE_DEVICES=0,1,2,3 swift pt --model Qwen/Qwen2.5-7B --torch_dtype bfloat16 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr $BATCH / $n) \
    --deepspeed zero3_offload --max_length 8192 --output_dir out
