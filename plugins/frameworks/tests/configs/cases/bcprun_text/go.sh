# Form of https://github.com/LLM360/k2-train scripts, figures of the 65B model
bcprun -p 8 -n 4 --env 'CUDA_DEVICE_MAX_CONNECTIONS=1' -c 'python /mount/pretrain_gpt.py \
--num-layers 80 \
--hidden-size 8192 \
--num-attention-heads 64 \
--seq-length 2048 \
--max-position-embeddings 2048 \
--tensor-model-parallel-size 8 \
--pipeline-model-parallel-size 4 \
--micro-batch-size 4 \
--global-batch-size 2040 \
--sequence-parallel \
--bf16
'
