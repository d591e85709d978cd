# Options of https://github.com/microsoft/DeepSpeedExamples and run_clm of
# https://github.com/huggingface/transformers/tree/main/examples/pytorch/language-modeling
deepspeed --num_gpus 8 --num_nodes 2 --hostfile hosts run_clm.py \
  --deepspeed configs/zero3.json \
  --model_name_or_path meta-llama/Llama-2-13b-hf \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 2 \
  --block_size 4096 \
  --bf16 True \
  --gradient_checkpointing True \
  --learning_rate 2e-5 --num_train_epochs 3 --output_dir out
