"""The dumb baseline against the formulas of the paper and against a published run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evidence.baseline import peak_flop_per_s, predict_baseline, step_flop
from profiles.errors import InputError
from shardwright.runs.run import PublishedRun

B, L, H, S, V = 64, 96, 12288, 2048, 51200
GPT3 = PublishedRun(
    row=1,
    id="korthikanti-tab5-gpt3",
    family="dense",
    num_layers=L,
    hidden_size=H,
    ffn_size=4 * H,
    num_heads=96,
    num_kv_heads=96,
    head_dim=128,
    vocab_size=V,
    seq_len=S,
    gated_mlp=False,
    device="a100-sxm-80gb",
    num_devices=64,
    recompute="none",
    global_batch=B,
    precision="fp16",
)


def paper(recomputed_attention: int) -> float:
    """72 B l s h^2 (1 + s / 6h + V / 12hl), with the attention core counted again if recomputed."""
    core = S / (6 * H) * (1 + recomputed_attention / 3)
    return 72 * B * L * S * H**2 * (1 + core + V / (12 * H * L))


def test_the_formula_of_the_paper() -> None:
    assert step_flop(GPT3) == pytest.approx(paper(0), rel=1e-12)
    assert step_flop(replace(GPT3, recompute="selective")) == pytest.approx(paper(1), rel=1e-12)


def test_full_recomputation_runs_the_layers_once_more() -> None:
    """Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    expected = 96 * B * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H))
    assert step_flop(replace(GPT3, recompute="full")) == pytest.approx(expected, rel=1e-12)


def test_a_step_of_gpt3() -> None:
    """Selective recomputation: about 16 s; 13.75 s were measured (table 5 of the paper)."""
    (row,) = predict_baseline([replace(GPT3, recompute="selective")])
    expected = paper(1) / (0.45 * 312e12 * 64)
    assert row.step_time_s == pytest.approx(expected)
    assert 14.0 < expected < 17.5


def test_experts_count_when_visited() -> None:
    """One layer of 2 of 8 experts plus a shared one, gated: 3 x 3 h f, and 8 h for the router."""
    moe = replace(
        GPT3,
        family="moe",
        num_layers=1,
        gated_mlp=True,
        num_experts=8,
        top_k=2,
        moe_ffn_size=1000,
        num_shared_experts=1,
        vocab_size=None,
    )
    parameters = 4 * H**2 + 3 * 3 * H * 1000 + 8 * H
    assert step_flop(moe) == pytest.approx(B * S * (6 * parameters + 12 * S * H), rel=1e-12)
    dense = replace(moe, first_dense_layers=1)
    assert step_flop(dense) == pytest.approx(
        B * S * (6 * (4 * H**2 + 12 * H**2) + 12 * S * H), rel=1e-12
    )


def test_frozen_weights_have_no_gradient() -> None:
    lora = step_flop(replace(GPT3, family="lora", vocab_size=None))
    full = step_flop(replace(GPT3, vocab_size=None))
    assert full - lora == pytest.approx(B * S * 2 * 12 * H**2 * L, rel=1e-12)


def test_peaks_by_precision() -> None:
    h100 = replace(GPT3, device="h100-sxm-80gb")
    assert peak_flop_per_s(replace(h100, precision="fp8")) == 1979e12
    assert peak_flop_per_s(replace(h100, precision="")) == 989e12
    assert peak_flop_per_s(replace(h100, device="v100", precision="")) == 125e12
    with pytest.raises(InputError, match="'int3' is not one of"):
        peak_flop_per_s(replace(h100, precision="int3"))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("num_layers", None, "num_layers is not stated"),
        ("global_batch", None, "global_batch is not stated"),
        ("device", "", "device is not stated"),
        ("device", "abacus", "unknown device 'abacus'"),
    ],
)
def test_what_is_missing_is_said(column: str, value: object, said: str) -> None:
    (row,) = predict_baseline([replace(GPT3, **{column: value})])
    assert row.step_time_s is None
    assert row.status.startswith(f"unsupported: {said}")
