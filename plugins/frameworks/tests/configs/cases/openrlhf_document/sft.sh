# Form of https://github.com/OpenRLHF/OpenRLHF examples/scripts
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.max_len 2048 \
   --train.batch_size 256 \
   --train.micro_batch_size 2 \
   --model.model_name_or_path Qwen/Qwen2.5-7B \
   --ds.zero_stage 2 --ds.param_dtype bf16 \
   --model.gradient_checkpointing_enable
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
