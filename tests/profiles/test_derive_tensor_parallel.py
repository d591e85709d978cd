"""Tensor-parallel rules that are derived from what a plain-torch model runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiles.model.building.build import build_model
from profiles.model.building.tensor_parallel_rules import matches, split_of
from profiles.model.graph import OpKind
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace_derive_tensor_parallel import (
    Derived,
    _on_part_of_image,
    derive_rules,
)
from profiles.model.tracing.trace_random_block import Call, block_calls, small_block
from profiles.model.tracing.trace_tensor_parallel_check import NotSplit, Recording, check_split
from profiles.model.tracing.traced import trace_model

GATED = {("w1", "column"), ("w3", "column"), ("w2", "row")}
GROUPED = {("wq", "column"), ("wk", "column"), ("wv", "column"), ("wo", "row")}
MLP = {("up", "column"), ("down", "row")}
FUSED = {("c_attn", "fused_column_3"), ("c_proj", "row")}


@cache
def derived(name: str) -> Derived:
    spec = resolve_model(f"tests.profiles.plain_models:{name}")
    return derive_rules(build_model(spec, micro_batch=3, sequence_length=16))


def layers(name: str) -> set[tuple[str, str]]:
    """(last part of the path, kind) of the split layers."""
    found = derived(name).rules
    return {(path.rpartition(".")[2], kind) for path, kind in found if split_of(kind)[0]}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama", GATED | GROUPED),
        ("llama_with_norms", GATED | GROUPED),
        ("gpt", MLP | FUSED),
        ("parallel_gpt", MLP | FUSED),
        ("mixture", GATED | GROUPED),
        ("one_matrix", {("inside", "fused_column_1:1:1:4"), ("outside", "fused_row_1:4")}),
        (
            "asked",
            MLP | {("query", "column"), ("key", "column"), ("value", "column"), ("out", "row")},
        ),
        ("asked_with_norm", MLP),
        ("checked", MLP),
        ("of_one_length", MLP),
        ("llama_with_one_key", GATED),
        ("torch_encoder", {("linear1", "column"), ("linear2", "row")}),
        ("perceptron", {("0", "column"), ("2", "row")}),
    ],
)
def test_layers_are_split_as_in_megatron(name: str, wanted: set[tuple[str, str]]) -> None:
    assert layers(name) == wanted, derived(name).whole
    assert derived(name).why_not(2) == ""


def test_a_mask_of_whole_numbers_hides_no_gradient() -> None:
    """Where it hid all, what the queries and keys lose where values are split was not seen."""
    assert not layers("masked") & {("value", "column"), ("out", "row")}
    assert derived("masked").why_not(2)


@pytest.mark.parametrize(("name", "count"), [("mixture", 3 * 4), ("many_experts", 48)])
def test_every_repeat_is_split_and_experts_that_got_no_rows_too(name: str, count: int) -> None:
    spec = resolve_model(f"tests.profiles.plain_models:{name}")
    built = build_model(spec, micro_batch=3, sequence_length=16)
    rules = derived(name).rules
    paths = [path for path, _ in built.module.named_modules() if path.endswith(".w2")]
    assert len(paths) == count
    assert all(any(matches(pattern, path) for pattern, _ in rules) for path in paths)


def test_of_an_expert_without_rows_each_layer_is_split_like_the_same_layer_of_another() -> None:
    """Of a sequence in an expert without rows, one layer was split like the other, or alone."""
    rules = derived("experts_in_sequence").rules
    for number in range(48):
        for place, wanted in ((0, "column"), (2, "row")):
            path = f"layers.0.mlp.experts.{number}.{place}"
            assert [kind for pattern, kind in rules if matches(pattern, path)] == [wanted], path


def test_sizes_of_the_code_and_shared_weights_of_heads_are_rules_too() -> None:
    rules = derived("llama_with_norms").rules
    assert ("layers.*.attention.q_norm.weight", "sum_gradient") in rules
    assert ("layers.*.attention", "local_sizes view 0 2") in rules
    assert ("layers.*.attn", "local_sizes split 0 0") in derived("gpt").rules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("convolutions", "no linear layer feeds another"),
        ("weight_normed", "no linear layer feeds another"),
        ("excited", "do 0% of its blocks' work"),
        ("biased", "`add` on a share of qkv's features fails"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(name: str, why: str) -> None:
    assert derived(name).rules == ()
    assert why in derived(name).why_not(1)


def test_what_stays_whole_is_named() -> None:
    assert "`mul` of attention" in derived("llama_with_one_key").whole[0]
    assert "`layer_norm` of inner" in derived("asked_with_norm").whole[0]


def test_degrees_that_do_not_divide_the_heads_are_refused() -> None:
    """Two heads of keys: four ranks have no share of them."""
    assert "tp=4 does not divide 2, a size in `view`" in derived("llama").why_not(4)
    assert derived("gpt").why_not(4) == ""
    assert "tp=8 does not divide 4" in derived("gpt").why_not(8)


def test_a_trace_on_two_ranks_halves_the_blocks_and_notes_the_sums(tmp_path: Path) -> None:
    spec = resolve_model("tests.profiles.plain_models:llama")
    traced = trace_model(
        spec,
        sequence_length=24,
        dtype="float32",
        tp_degrees=(1, 2, 4),
        target="cpu",
        cache=tmp_path,
    )
    assert traced.tp_degrees == (1, 2)
    assert traced.tensor_parallel == derived("llama").rules
    one, two = (traced.at(2, tp) for tp in (1, 2))
    products = [
        sum(
            op.work_flop
            for op in graph.kinds[graph.chain[1].kind].forward_ops
            if op.kind is OpKind.MATMUL
        )
        for graph in (one, two)
    ]
    assert products[0] == 2 * products[1]
    collectives = two.kinds[two.chain[1].kind].collectives
    assert len(collectives) == 4


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("llama", {"mlp.w1": ("column", (1,)), "mlp.w2": ("row", (1,))}),
        ("gpt", {"up": ("column", (1,)), "down": ("row", (2, 6))}),
    ],
)
def test_the_check_finds_a_split_that_is_wrong(name: str, roles: dict[str, Any]) -> None:
    """One of two layers that meet is left whole; the rows are in another order than the columns."""
    spec = resolve_model(f"tests.profiles.plain_models:{name}")
    calls, _ = block_calls(build_model(spec, micro_batch=3, sequence_length=16))
    with pytest.raises(NotSplit):
        check_split(Recording(small_block(calls[0], 0)), roles, (), 2)


def test_the_check_finds_a_missing_size() -> None:
    spec = resolve_model("tests.profiles.plain_models:gpt")
    calls, _ = block_calls(build_model(spec, micro_batch=3, sequence_length=16))
    parts = (1, 1, 1)
    roles = {"attn.c_attn": ("column", parts), "attn.c_proj": ("row", (1,))}
    views = [("attn", f"local_sizes view {i} 2") for i in range(4)]
    sizes = [("attn", "local_sizes split 0 0"), *views]
    assert check_split(Recording(small_block(calls[0], 0)), roles, tuple(sizes), 2) == ()
    for missing in sizes:
        left = tuple(rule for rule in sizes if rule != missing)
        with pytest.raises(NotSplit):
            check_split(Recording(small_block(calls[0], 0)), roles, left, 2)


class _OverPositions(nn.Module):
    """Attention between all positions of an image: its work grows with their square."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2).transpose(1, 2)
        mixed = (flat @ flat.transpose(1, 2)).softmax(-1) @ flat
        return mixed.transpose(1, 2).reshape(x.shape)


_POINTWISE = nn.Sequential(nn.Conv2d(8, 32, 1), nn.GELU(), nn.Conv2d(32, 8, 1))


@pytest.mark.parametrize(
    ("module", "part"),
    [
        (_POINTWISE, 4 * 4 / (56 * 56)),
        (nn.Sequential(_POINTWISE, _OverPositions()), 1.0),
        (nn.Sequential(nn.Flatten(), nn.Linear(8 * 56 * 56, 8)), 1.0),
    ],
    ids=["each position alone", "positions together", "one size only"],
)
def test_a_block_runs_on_part_of_an_image_where_its_work_is_that_part(
    module: nn.Module, part: float
) -> None:
    image = torch.empty(2, 8, 56, 56, device="meta", requires_grad=True)
    call = Call("blocks.0", module.to("meta"), (image,), {})
    assert _on_part_of_image(call).part == pytest.approx(part)
