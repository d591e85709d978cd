"""Least seconds of ops by hand: 100 Tflop/s, 1 TB/s."""

from __future__ import annotations

import pytest

from profiles.model.graph import AttentionShape, MatmulShape, Phase
from simulator.traced.utilisation import SpeedOfLight
from tests.simulator.hand_made import device

LIGHT = SpeedOfLight(device())


def attention(length: int, *, causal: bool = True) -> AttentionShape:
    return AttentionShape(
        batch=2,
        heads=4,
        kv_heads=2,
        q_len=length,
        kv_len=length,
        head_dim=64,
        causal=causal,
    )


def test_a_short_attention_moves_its_tensors() -> None:
    # 2 x 64 x (q and output of 4 heads, k and v of 2) x 128 rows of 2 bytes; 33.6 Mflop take less.
    moved = 2 * 64 * (2 * 4 + 2 * 2) * 128 * 2
    assert LIGHT.attention(attention(128), "bfloat16", Phase.FORWARD) == moved / 1e12
    assert LIGHT.attention(attention(128), "bfloat16", Phase.BACKWARD) == 2 * moved / 1e12
    for wide in ("float32", "another"):
        assert LIGHT.attention(attention(128), wide, Phase.FORWARD) == 2 * moved / 1e12


def test_a_long_attention_computes() -> None:
    # 4 flop for each of 2 x 4 x 4096 x 4096 x 64, half of them where causal.
    work = 4 * 2 * 4 * 4096**2 * 64
    for causal, share in ((True, 0.5), (False, 1.0)):
        shape = attention(4096, causal=causal)
        forward = LIGHT.attention(shape, "bfloat16", Phase.FORWARD)
        assert forward == pytest.approx(share * work / 100e12)
        assert LIGHT.attention(shape, "bfloat16", Phase.BACKWARD) == pytest.approx(2.5 * forward)


def test_a_product_computes_or_moves() -> None:
    square = MatmulShape(batch=3, m=1024, n=2048, k=4096)
    assert LIGHT.matmul(square, "bfloat16") == 3 * 2 * 1024 * 2048 * 4096 / 100e12
    vector = MatmulShape(batch=3, m=1, n=2048, k=4096)
    elements = 3 * (4096 + 4096 * 2048 + 2048)
    assert LIGHT.matmul(vector, "bfloat16") == elements * 2 / 1e12
    assert LIGHT.matmul(vector, "another") == elements * 4 / 1e12
