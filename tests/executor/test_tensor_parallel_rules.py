"""Derived tensor-parallel rules, run: models split over two processes against themselves whole.

Each model is planned by the search with tp pinned to 2 and goes through the gradient check, so
tracing on split shapes, the plan's rules and the executor's layers are all in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwright
from planner.axes import Axes
from profiles.model.graph import OpKind, Phase
from profiles.model.tracing.trace_tensor_parallel import share_of
from shardwright import api
from simulator.values.plan import Plan
from simulator.values.workload import Workload
from tests.executor.cases import TINY_GPT2, TINY_LLAMA, run_job
from tests.executor.config_zoo import config_of
from tests.executor.test_planned_models import WHISPER

ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {**TINY_GPT2, "n_layer": 2},
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "pad_token_id": 1,
    },
    "qwen3": {
        **TINY_LLAMA,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
    },
    "gptj": {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "rotary_dim": 4,
        "vocab_size": 96,
        "n_positions": 64,
        "tie_word_embeddings": False,
    },
    "bert": {"architectures": ["BertForMaskedLM"], "model_type": "bert", **ENCODER},
    "roberta": {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        **ENCODER,
        "pad_token_id": 1,
    },
    "distilbert": {
        "architectures": ["DistilBertForMaskedLM"],
        "model_type": "distilbert",
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "vocab_size": 96,
        "max_position_embeddings": 64,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 16,
        "patch_size": 4,
        "num_channels": 3,
    },
    "whisper": WHISPER,
    **{name: config_of(name) for name in ("bart", "electra", "mbart", "pegasus", "marian", "m2m")},
}
# Split as one of the others: GPT-2's fused columns, Qwen3's norms of heads, Bart's two attentions;
# whisper runs on four processes too.
_LIKE_ANOTHER = (
    *("mbart", "pegasus", "marian", "m2m", "opt", "roberta", "electra", "distilbert"),
    *("whisper", "gptj", "bert", "vit"),
)


def split_plan(
    model: str, devices: int, pp: int, length: int | None = 16, micro_batch: int = 2
) -> Plan:
    """The plan with tp 2; `length` is None for a factory, which makes its own inputs.

    micro_batch  of 1 a CPU's trace is made anew, of others it follows from two that are there
    """
    traced = shardwright.trace(
        model, sequence_length=length, precision="fp32", tp_degrees=(1, 2), target="cpu"
    )
    assert traced.tp_degrees == (1, 2), traced.why_not_tensor_parallel
    cluster = shardwright.cluster(f"1x{devices}xa100-sxm-40gb")
    work = Workload(global_batch=4, sequence_length=traced.sequence_length, precision="fp32")
    space = Axes(tp=(2,), pp=(pp,), micro_batch=(micro_batch,))
    answer = api.plan(traced, cluster, work, space=space)
    assert answer.plan is not None
    return replace(answer.plan, model=model)


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        (2, tuple(name for name in CONFIGS if name not in _LIKE_ANOTHER)),
        pytest.param(2, _LIKE_ANOTHER, marks=pytest.mark.slow),
        pytest.param(4, ("gpt2", "whisper"), marks=pytest.mark.slow),
    ],
)
def test_split_models_have_the_gradients_of_the_whole(
    processes: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    cases = []
    for number, name in enumerate(names):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(CONFIGS[name]))
        samples = 2 if number else 1
        plan = split_plan(str(path), processes, processes // 2, micro_batch=samples)
        cases.append((name, plan))
    results = run_job(cases, processes, tmp_path)
    assert [result["name"] for result in results] == list(names)
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= 1e-5, result


def test_a_rank_of_gpt2_holds_half_of_each_layer(tmp_path: Path) -> None:
    """All products of the blocks are halved, all parameters but two norms and the row biases."""
    path = tmp_path / "gpt2.json"
    path.write_text(json.dumps(TINY_GPT2))
    traced = shardwright.trace(
        str(path), sequence_length=16, precision="fp32", tp_degrees=(1, 2), target="gpu"
    )
    one, two = (traced.at(1, tp).kinds[1] for tp in (1, 2))
    whole = 2 * 2 * 32 + 2 * 32
    assert two.parameter_count == (one.parameter_count - whole) // 2 + whole
    assert two.full_parameter_count == one.full_parameter_count
    products = [
        sum(op.work_flop for op in kind.forward_ops if op.kind is OpKind.MATMUL)
        for kind in (one, two)
    ]
    assert products[0] == 2 * products[1]
    assert [c.phase for c in two.collectives].count(Phase.FORWARD) == 2
    assert [c.phase for c in two.collectives].count(Phase.BACKWARD) == 2


def test_cross_attention_sums_the_gradients_of_both_its_inputs(tmp_path: Path) -> None:
    """A decoder block splits what goes into self-attention, the two inputs of cross-attention and
    the MLP: four all-reduces backward, three forward."""
    path = tmp_path / "whisper.json"
    path.write_text(json.dumps(WHISPER))
    traced = shardwright.trace(
        str(path), sequence_length=16, precision="fp32", tp_degrees=(1, 2), target="cpu"
    )
    graph = traced.at(1, 2)
    decoder = [graph.kinds[ref.kind] for ref in graph.chain if "decoder.layers.0" in ref.entry]
    phases = [c.phase for c in decoder[0].collectives]
    assert (phases.count(Phase.FORWARD), phases.count(Phase.BACKWARD)) == (3, 4)


def test_a_rank_holds_its_share_of_each_of_the_fused_parts() -> None:
    """q0 q1 k0 k1 v0 v1: the second of two ranks holds q1 k1 v1."""
    import torch

    x = torch.tensor([[1, 2, 3, 4, 5, 6]])
    assert share_of(x, (1, 1, 1), 2, 1, 1).tolist() == [[2, 4, 6]]


def test_shares_of_parts_of_other_sizes() -> None:
    """Two columns of queries beside one of keys for each rank: q0 q0 q1 q1 k0 k1."""
    import torch

    x = torch.tensor([1, 2, 3, 4, 5, 6])
    assert share_of(x, (2, 1), 2, 0, 0).tolist() == [1, 2, 5]
    assert share_of(x, (2, 1), 2, 1, 0).tolist() == [3, 4, 6]
