"""The plans of eight devices that are walked, each on a model that is no larger than it must be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiles.model.loaders import ModelSpec, resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload
from tests.executor.config_zoo import config_of

_LAYERS = {"num_hidden_layers": 6, "vocab_size": 512, "max_position_embeddings": 128}
_WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, **_LAYERS}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **_WIDE,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        **_WIDE,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "tie_word_embeddings": False,
    },
    # Of which weights need most of the memory.
    "wide": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **_WIDE,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 14,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 128,
        "n_layer": 6,
        "n_head": 8,
        "vocab_size": 512,
        "n_positions": 128,
        "tie_word_embeddings": True,
    },
    "mixtral": {**config_of("mixtral"), **_WIDE},
    "bert": {**config_of("bert"), **_WIDE},
    "t5": {**config_of("t5"), "d_model": 128, "d_ff": 256, "d_kv": 32, "vocab_size": 512},
    "vit": {
        **config_of("vit"),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 6,
    },
}
MODULES = {
    "resnet": "tests.executor.tiny_models:resnet50",
    "unet": "tests.executor.tiny_models:unet",
    "tied": "tests.executor.weight_zoo:tied",
    "recurrent": "tests.executor.weight_zoo:recurrent",
    "compared": "tests.executor.weight_zoo:compared",
    "two_tower": "examples.two_tower:build",
}
LENGTH = 64
FULL, ATTENTION = Recompute.FULL, Recompute.ATTENTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan to be made; micro  micro-batches per replica."""

    model: str
    pp: int = 1
    dp: int = 1
    tp: int = 1
    vpp: int = 1
    dp_replicate: int = 1
    zero: int = 0
    optimizer_offload: bool = False
    sequence_parallel: bool = False
    schedule: str = "none"
    recompute: Recompute = Recompute.NONE
    precision: str = "fp32"
    micro: int = 2

    @property
    def name(self) -> str:
        """What tests call it."""
        parts = [self.model, self.schedule if self.pp > 1 else ""]
        parts += [
            f"{key}{value}"
            for key, value in (
                ("pp", self.pp),
                ("dp", self.dp),
                ("tp", self.tp),
                ("vpp", self.vpp),
                ("hsdp", self.dp_replicate),
            )
            if value > 1
        ]
        parts += [f"zero{self.zero}" if self.dp > 1 else "", self.precision]
        parts += ["offload" if self.optimizer_offload else ""]
        parts += ["tokens" if self.sequence_parallel else ""]
        if self.recompute is not Recompute.NONE:
            parts.append(self.recompute.value)
        return "-".join(filter(None, parts))


def _all() -> tuple[Case, ...]:
    def case(model: str, schedule: str = "none", **rest: Any) -> Case:
        pp = rest.get("pp", 1)
        vpp = 2 if schedule in ("interleaved", "zbv", "v-half", "v-min", "dualpipev") else 1
        return Case(
            model=model, schedule=schedule, **{"micro": 2 * pp if pp > 1 else 2, "vpp": vpp, **rest}
        )

    bf16 = {"precision": "bf16"}
    found = [case("llama", dp=8, zero=z, **p) for z in range(4) for p in ({}, bf16)]
    found += [case("llama", dp=4, tp=2, zero=z) for z in range(4)]
    found += [case("llama", "1f1b", pp=2, dp=4, zero=z) for z in range(4)]
    found += [case("llama", "1f1b", pp=2, dp=2, tp=2, zero=z, **bf16) for z in range(4)]
    found += [
        *(case("llama", dp=8, dp_replicate=2, zero=z, **bf16) for z in (1, 2, 3)),
        case("llama", dp=4, dp_replicate=2, tp=2, zero=3),
        case("llama", "1f1b", pp=2, dp=4, dp_replicate=2, zero=1),
        case("llama", "zb-h1", pp=2, dp=4, dp_replicate=2, zero=3, **bf16),
        case("mixtral", dp=8, dp_replicate=4, zero=3),
        case("llama", dp=8, zero=3, optimizer_offload=True),
        case("llama", dp=8, zero=2, optimizer_offload=True, **bf16),
        case("llama", dp=8, zero=1, dp_replicate=2, optimizer_offload=True),
        case("wide", "1f1b", pp=2, dp=4, zero=3, optimizer_offload=True, **bf16),
        case("wide", "zb-h1", pp=2, dp=4, zero=2, optimizer_offload=True),
        case("gpt2", "1f1b", pp=2, dp=4, zero=3, optimizer_offload=True),
        case("llama", dp=4, tp=2, sequence_parallel=True),
        case("llama", dp=2, tp=4, zero=3, recompute=FULL, sequence_parallel=True, **bf16),
        case("llama", "1f1b", pp=2, dp=2, tp=2, zero=1, sequence_parallel=True, **bf16),
        case("llama", "zb-h1", pp=4, tp=2, sequence_parallel=True),
        case("llama", tp=8, recompute=ATTENTION, sequence_parallel=True),
        case("gpt2", dp=4, tp=2, zero=2, sequence_parallel=True, **bf16),
        case("gpt2", "interleaved", pp=2, dp=2, tp=2, zero=3, sequence_parallel=True),
        case("qwen3", "1f1b", pp=2, dp=2, tp=2, recompute=FULL, sequence_parallel=True),
        case("bert", dp=4, tp=2, zero=1, sequence_parallel=True),
        case("llama", dp=8, zero=3, recompute=FULL),
        case("llama", dp=8, zero=0, recompute=ATTENTION, **bf16),
        case("llama", dp=2, tp=4, zero=1, recompute=FULL, **bf16),
        case("llama", tp=8),
        case("llama", "gpipe", pp=2, dp=4, zero=0),
        case("llama", "gpipe", pp=4, dp=2, zero=3, recompute=FULL),
        case("llama", "interleaved", pp=2, dp=4, zero=1),
        case("llama", "interleaved", pp=2, dp=2, tp=2, zero=2, **bf16),
        case("llama", "interleaved", pp=4, dp=2, zero=3),
        case("llama", "zb-h1", pp=2, dp=4, zero=0),
        case("llama", "zb-h1", pp=4, tp=2, recompute=FULL),
        case("llama", "zb-h1", pp=2, dp=4, zero=3, **bf16),
        case("llama", "zb-h2", pp=2, dp=4, zero=1),
        case("llama", "zb-h2", pp=4, dp=2, zero=2, **bf16),
        case("llama", "zbv", pp=2, dp=4, zero=0),
        case("llama", "zbv", pp=4, dp=2, zero=3),
        case("llama", "v-half", pp=2, dp=4, zero=1, **bf16),
        case("llama", "v-half", pp=4, tp=2),
        case("llama", "v-min", pp=2, dp=4, zero=2),
        case("llama", "v-min", pp=4, dp=2, zero=0, recompute=ATTENTION),
        case("llama", "dualpipev", pp=2, dp=4, zero=0, micro=8),
        case("llama", "dualpipev", pp=4, dp=2, zero=3, micro=8, **bf16),
        case("llama", "1f1b", pp=8),
        case("wide", "1f1b", pp=2, dp=4, zero=1),
        case("wide", "1f1b", pp=2, dp=4, zero=3),
        case("wide", "1f1b", pp=2, dp=4, zero=3, **bf16),
        case("wide", "zb-h1", pp=2, dp=4, zero=3),
        case("gpt2", dp=8, zero=0),
        case("gpt2", dp=8, zero=3, **bf16),
        case("gpt2", dp=4, tp=2, zero=2),
        case("gpt2", "1f1b", pp=2, dp=4, zero=1),
        case("gpt2", "1f1b", pp=4, dp=2, zero=3, recompute=FULL),
        case("gpt2", "zbv", pp=4, dp=2, zero=0),
        case("gpt2", "interleaved", pp=2, dp=2, tp=2, zero=1, **bf16),
        case("mixtral", dp=8, zero=0),
        case("mixtral", dp=8, zero=3),
        case("mixtral", "1f1b", pp=2, dp=4, zero=2),
        case("mixtral", "zb-h1", pp=4, dp=2, zero=1, **bf16),
        case("bert", dp=8, zero=1),
        case("bert", "1f1b", pp=4, dp=2, zero=0, **bf16),
        case("bert", dp=4, tp=2, zero=3),
        case("t5", dp=8, zero=2),
        case("t5", "gpipe", pp=2, dp=4, zero=0),
        case("t5", "1f1b", pp=4, dp=2, zero=3),
        case("vit", dp=8, zero=3, **bf16),
        case("vit", "1f1b", pp=2, dp=4, zero=1),
        case("vit", "dualpipev", pp=2, dp=4, zero=2, micro=8),
        case("resnet", dp=8, zero=0),
        case("resnet", "1f1b", pp=2, dp=4, zero=3),
        case("resnet", "gpipe", pp=4, dp=2, zero=1),
        case("tied", dp=8, zero=3),
        case("tied", "1f1b", pp=2, dp=4, zero=1),
        case("unet", "1f1b", pp=4, dp=2, zero=0),
        case("unet", "zb-h1", pp=2, dp=4, zero=2),
        case("recurrent", dp=8, zero=1),
        case("recurrent", "1f1b", pp=2, dp=4, zero=3),
        *(case("compared", dp=8, zero=z) for z in (1, 2, 3)),
        case("compared", dp=8, zero=3, **bf16),
        case("compared", "1f1b", pp=2, dp=4, zero=2),
        case("two_tower", "interleaved", pp=2, dp=4, zero=1),
    ]
    return tuple(found)


ALL = _all()


def source_of(model: str, folder: Path) -> str:
    """What to pass as the model."""
    if model in MODULES:
        return MODULES[model]
    path = folder / f"{model}.json"
    path.write_text(json.dumps(CONFIGS[model]))
    return str(path)


def traced_for(case: Case, folder: Path) -> tuple[TracedModel, ModelSpec]:
    """The case's model, traced for an accelerator."""
    spec = resolve_model(source_of(case.model, folder))
    return _traced(spec, case.precision, case.tp, case.sequence_parallel), spec


@lru_cache(maxsize=16)
def _traced(spec: ModelSpec, precision: str, tp: int, sequence_parallel: bool) -> TracedModel:
    return trace_model(
        spec,
        sequence_length=LENGTH,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[precision],
        tp_degrees=(1, tp) if tp > 1 else (1,),
        target="gpu",
        sequence_parallel=sequence_parallel,
    )


def plan_of(case: Case, traced: TracedModel, *, micro_batch: int = 2) -> Plan:
    """The plan, with blocks dealt evenly to the stages."""
    chain = traced.at(micro_batch, case.tp).chain
    count = case.pp * case.vpp
    cuts = [len(chain) * i // count for i in range(count + 1)]
    return Plan(
        model=traced.source,
        model_hash=traced.content_hash,
        block_entries=tuple(ref.entry for ref in chain),
        tied_parameters=traced.tied_parameters,
        tensor_parallel=traced.tensor_parallel if case.tp > 1 else (),
        cluster="test",
        cluster_hash="",
        workload=Workload(
            global_batch=case.dp * micro_batch * case.micro,
            sequence_length=LENGTH,
            precision=case.precision,
        ),
        degrees=Degrees(
            tp=case.tp, pp=case.pp, dp=case.dp, vpp=case.vpp, dp_replicate=case.dp_replicate
        ),
        zero_stage=case.zero if case.dp > 1 else 0,
        optimizer_offload=case.optimizer_offload,
        sequence_parallel=case.sequence_parallel,
        micro_batch=micro_batch,
        schedule=case.schedule,
        stages=tuple(
            Stage(first_block=a, last_block=b, recompute=(case.recompute,) * (b - a))
            for a, b in pairwise(cuts)
        ),
    )
