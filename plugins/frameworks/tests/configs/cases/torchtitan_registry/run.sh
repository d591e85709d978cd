NGPU=${NGPU:-"8"}
MODULE="llama3"
CONFIG="llama3_8b_tp"
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d -m torchtitan.train --module ${MODULE} --config ${CONFIG} "$@"
