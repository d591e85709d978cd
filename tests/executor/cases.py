"""Plans for the gradient checks, and the small models that they split."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiles.document import encode
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import tied_parameters, trace_graph
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload
from tests.executor.gradient_job import check_plans
from tests.executor.processes import run_ranks

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
TINY_GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 96,
    "n_positions": 64,
    "tie_word_embeddings": True,
}
LLAMA_RULES = tuple(
    (f"model.layers.*.{name}", kind)
    for name, kind in (
        ("self_attn.q_proj", "column"),
        ("self_attn.k_proj", "column"),
        ("self_attn.v_proj", "column"),
        ("self_attn.o_proj", "row"),
        ("mlp.gate_proj", "column"),
        ("mlp.up_proj", "column"),
        ("mlp.down_proj", "row"),
    )
)
LLAMA_ENTRIES = ("", *(f"model.layers.{i}" for i in range(4)), "model.norm")
GPT2_ENTRIES = ("", *(f"transformer.h.{i}" for i in range(4)), "transformer.ln_f")
CNN_ENTRIES = ("", "1", "2", "3", "4", "5")


def write_models(folder: Path) -> dict[str, str]:
    """Model name -> what to pass as the model."""
    models = {}
    for name, config in (("llama", TINY_LLAMA), ("gpt2", TINY_GPT2)):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        models[name] = str(path)
    models["cnn"] = "tests.executor.tiny_models:cnn"
    return models


def make_plan(
    model: str,
    entries: tuple[str, ...],
    *,
    pp: int = 1,
    dp: int = 1,
    tp: int = 1,
    vpp: int = 1,
    dp_replicate: int = 1,
    zero_stage: int = 0,
    optimizer_offload: bool = False,
    schedule: str = "none",
    recompute: Recompute = Recompute.NONE,
    micro_batches: int = 0,
    micro_batch: int = 2,
    precision: str = "fp32",
) -> Plan:
    """A plan with blocks dealt evenly to the stages.

    micro_batches  4 in a pipeline, which holds several; else 2, the least that add up
    """
    micro_batches = micro_batches or (4 if pp > 1 else 2)
    count = pp * vpp
    cuts = [len(entries) * i // count for i in range(count + 1)]
    tied = (("transformer.wte.weight", "lm_head.weight"),) if "gpt2" in model else ()
    return Plan(
        model=model,
        model_hash=resolve_model(model).content_hash,
        block_entries=entries,
        tied_parameters=tied,
        tensor_parallel=LLAMA_RULES if tp > 1 else (),
        cluster="test",
        cluster_hash="",
        workload=Workload(
            global_batch=dp * micro_batch * micro_batches, sequence_length=16, precision=precision
        ),
        degrees=Degrees(tp=tp, pp=pp, dp=dp, vpp=vpp, dp_replicate=dp_replicate),
        zero_stage=zero_stage,
        optimizer_offload=optimizer_offload,
        micro_batch=micro_batch,
        schedule=schedule,
        stages=tuple(
            Stage(first_block=a, last_block=b, recompute=(recompute,) * (b - a))
            for a, b in pairwise(cuts)
        ),
    )


def every_block_a_stage(model: str, stages: int) -> Plan:
    """A plan of up to so many stages of one rank each, without a search."""
    spec = resolve_model(model)
    graph = trace_graph(spec, micro_batch=2, sequence_length=16, dtype="float32", target="cpu")
    entries = tuple(block.entry for block in graph.chain)
    tied = tied_parameters(build_model(spec, micro_batch=2, sequence_length=16).module)
    count = min(stages, len(entries))
    cuts = [len(entries) * i // count for i in range(count + 1)]
    return Plan(
        model=model,
        model_hash=spec.content_hash,
        block_entries=entries,
        tied_parameters=tied,
        tensor_parallel=(),
        cluster="test",
        cluster_hash="",
        workload=Workload(global_batch=4, sequence_length=16, precision="fp32"),
        degrees=Degrees(pp=count),
        zero_stage=0,
        micro_batch=2,
        schedule="1f1b",
        stages=tuple(
            Stage(first_block=a, last_block=b, recompute=(Recompute.NONE,) * (b - a))
            for a, b in pairwise(cuts)
        ),
    )


def run_job(
    cases: list[tuple[str, Plan]], processes: int, folder: Path, *, backend: str = ""
) -> list[dict[str, Any]]:
    """Results of the gradient checks, one per case; `backend` as of Rank."""
    listed = [
        {"name": name, "model": plan.model, "plan": encode(plan), "backend": backend}
        for name, plan in cases
    ]
    (folder / "cases.json").write_text(json.dumps(listed))
    results = folder / "results.json"
    said = run_ranks(check_plans, folder / "cases.json", results, processes=processes)
    assert results.is_file(), said[-4000:]
    found: list[dict[str, Any]] = json.loads(results.read_text())
    return found
