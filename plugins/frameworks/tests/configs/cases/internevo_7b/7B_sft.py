# keys of https://github.com/InternLM/InternEvo/blob/develop/configs/7B_sft.py
SEQ_LEN = 2048
HIDDEN_SIZE = 4096
NUM_LAYER = 32
data = dict(
    seq_len=SEQ_LEN,
    micro_num=4,
    micro_bsz=2,
    pack_sample_into_one=False,
)
model = dict(
    checkpoint=False,
    num_chunks=1,
    num_attention_heads=32,
    hidden_size=HIDDEN_SIZE,
    vocab_size=103168,
    num_layers=NUM_LAYER,
    dtype="torch.bfloat16",
    use_flash_attn=True,
)
parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="mtp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True),
)
