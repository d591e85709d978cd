# Form of https://github.com/huggingface/trl/tree/main/examples/accelerate_configs
ACCELERATE_CONFIG=ds.yaml
accelerate launch --config_file $ACCELERATE_CONFIG --num_machines 1 --num_processes 4 \
    train_sft.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 --max_seq_length 2048 --learning_rate 1e-5 --bf16 --output_dir o --optim adamw_torch_fused
