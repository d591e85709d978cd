# Form of https://github.com/AI-Hypercomputer/maxtext src/maxtext/configs/tpu/v5p/gpt3_175b
set -eu
NAME=${1:-${NAME:-run}}
chmod +x base.sh
./base.sh 2 "save_qkv_proj" 4 32 8 "${NAME}"
