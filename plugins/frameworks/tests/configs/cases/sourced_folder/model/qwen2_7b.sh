SIZE=7B
case $SIZE in
  0.5B) NUM_LAYERS=24; HIDDEN=896; HEADS=14; FFN=4864; KV=2 ;;
  7B)
    NUM_LAYERS=28
    HIDDEN=3584
    HEADS=28
    FFN=18944
    KV=4
    ;;
  *) echo "unknown"; exit 1 ;;
esac
model_options=" --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN} --num-attention-heads ${HEADS} --ffn-hidden-size ${FFN} --group-query-attention --num-query-groups ${KV} --seq-length 4096 --max-position-embeddings 32768 --untie-embeddings-and-output-weights"
