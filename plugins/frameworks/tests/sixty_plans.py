"""Sixty plans: eight models on the frameworks and schedules that can express them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright_frameworks.exports.values.planned_run import PlannedRun

from plugins.frameworks.tests.planned_runs import planned, uneven

LLAMAS = ("tiny-llama-demo", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
EXPERTS = ("mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3")
ALL = (*LLAMAS, *EXPERTS, "gpt3-175b")
# Layers that four pipeline ranks share evenly, or not.
_TP = {"tiny-llama-demo": 2, "qwen3-235b-a22b": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan and the target that it goes to; gaps  options that the target has no words for."""

    name: str
    target: str
    plan: PlannedRun
    gaps: tuple[str, ...] = ()


def _tp(model: str) -> int:
    return _TP.get(model, 8)


def sixty_plans() -> tuple[Case, ...]:
    """All of them, named by model, target and schedule."""
    cases = [*_megatron(), *_bridge(), *_torchtitan(), *_data_parallel(), *_others()]
    return tuple(cases)


def _megatron() -> Iterator[Case]:
    for model in ALL:
        axes = {"tp": _tp(model), "pp": 4, "dp": 4, "seq_len": 2048}
        if model in EXPERTS:
            axes |= {"ep": 8}
        plan = planned(model, "megatron-core", **axes)
        yield Case(name=f"{model}-1f1b", target="megatron", plan=plan)
        if model in ("deepseek-v3", "qwen3-235b-a22b"):
            continue
        chunks = 3 if model == "llama-3.1-405b" else 2
        plan = planned(model, "megatron-core", vpp=chunks, schedule="interleaved", **axes)
        yield Case(name=f"{model}-interleaved", target="megatron", plan=plan)
    even = planned("llama-3.1-8b", "megatron-core", tp=2, pp=4, dp=2, recompute="full")
    yield Case(name="llama-3.1-8b-uneven", target="megatron", plan=uneven(even, (7, 9, 9, 7)))
    low = planned(
        "llama-3.1-70b", "megatron-core", tp=4, pp=4, cp=2, dp=2, precision="fp8", wide_layers=1,
        recompute="full", recompute_layers=5, gradient_reduction="bf16", optimizer_offload=True,
    )  # fmt: skip
    yield Case(name="llama-3.1-70b-fp8", target="megatron", plan=low)
    bubble = planned("llama-3.1-8b", "torch", tp=2, pp=4, dp=2, vpp=2, schedule="zbv", zero_stage=1)
    yield Case(name="llama-3.1-8b-zbv", target="megatron", plan=bubble, gaps=("schedule",))


def _bridge() -> Iterator[Case]:
    for model in ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "qwen3-235b-a22b"):
        axes = {"tp": _tp(model) if model != "deepseek-v3" else 2, "pp": 4, "dp": 8}
        if model in EXPERTS:
            axes |= {"ep": 8}
        plan = planned(model, "megatron-bridge", recompute="selective", **axes)
        yield Case(name=f"{model}-1f1b", target="megatron-bridge", plan=plan)
    plan = planned(
        "gpt3-175b", "megatron-bridge", tp=8, pp=4, dp=2, vpp=2, schedule="interleaved",
        seq_len=2048, precision="mxfp8",
    )  # fmt: skip
    yield Case(name="gpt3-175b-interleaved", target="megatron-bridge", plan=plan)


def _torchtitan() -> Iterator[Case]:
    for model in LLAMAS:
        tp = 2 if model == "tiny-llama-demo" else 8
        plan = planned(model, "torchtitan", tp=tp, dp=8, zero_stage=3, recompute="alternate")
        yield Case(name=f"{model}-fsdp", target="torchtitan", plan=plan)
    for schedule, vpp in (
        ("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zbv", 2), ("dualpipev", 2),
        ("zb-h1", 1), ("v-half", 2),
    ):  # fmt: skip
        plan = planned(
            "llama-3.1-8b", "torchtitan", tp=2, pp=4, dp=2, vpp=vpp, schedule=schedule,
            recompute="full",
        )  # fmt: skip
        yield Case(name=f"llama-3.1-8b-{schedule}", target="torchtitan", plan=plan)
    plan = planned(
        "llama-3.1-70b", "torchtitan-compiled", tp=8, dp=8, cp=2, zero_stage=3, precision="fp8",
        gradient_reduction="bf16",
    )  # fmt: skip
    gaps = ("gradient_reduction",)
    yield Case(name="llama-3.1-70b-fp8", target="torchtitan", plan=plan, gaps=gaps)


def _data_parallel() -> Iterator[Case]:
    for stage in (0, 1, 2, 3):
        plan = planned(
            "llama-3.1-8b", "transformers", dp=16, zero_stage=stage, recompute="full",
            optimizer_offload=stage == 2,
        )  # fmt: skip
        yield Case(name=f"llama-3.1-8b-zero{stage}", target="deepspeed", plan=plan)
        gaps = ("zero_stage",) if stage == 1 else ()
        yield Case(name=f"llama-3.1-8b-zero{stage}", target="accelerate", plan=plan, gaps=gaps)
        yield Case(name=f"llama-3.1-8b-zero{stage}", target="hf-trainer", plan=plan)
    plan = planned("mixtral-8x7b", "transformers", dp=32, zero_stage=3, recompute="full")
    for target in ("deepspeed", "accelerate"):
        yield Case(name="mixtral-8x7b-zero3", target=target, plan=plan)
    plan = planned("gpt3-175b", "megatron-deepspeed", tp=8, pp=8, dp=2, seq_len=2048)
    yield Case(name="gpt3-175b-pipeline", target="deepspeed", plan=plan)
    plan = planned("llama-3.1-70b", "torchtitan", tp=8, dp=8, zero_stage=3)
    yield Case(name="llama-3.1-70b-tp", target="accelerate", plan=plan)
    plan = planned("qwen3-235b-a22b", "torch-fsdp", dp=64, zero_stage=3, recompute="full")
    yield Case(name="qwen3-235b-a22b-fsdp", target="hf-trainer", plan=plan)


def _others() -> Iterator[Case]:
    for model in LLAMAS:
        tp = 2 if model == "tiny-llama-demo" else 8
        pp = {"llama-3.1-405b": 9, "tiny-llama-demo": 2}.get(model, 4)
        plan = planned(model, "nanotron", tp=tp, pp=pp, dp=2, recompute="full")
        yield Case(name=f"{model}-1f1b", target="nanotron", plan=plan)
    plan = planned("mixtral-8x7b", "nanotron", tp=8, pp=2, dp=2)
    yield Case(name="mixtral-8x7b-1f1b", target="nanotron", plan=plan)
    for model in ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b"):
        plan = planned(model, "maxtext", dp=64, zero_stage=3, recompute="full", device="tpu-v5p")
        yield Case(name=f"{model}-fsdp", target="maxtext", plan=plan)
    plan = planned("llama-3.1-70b", "maxtext", tp=4, dp=16, zero_stage=3, recompute="none")
    yield Case(name="llama-3.1-70b-tp", target="maxtext", plan=plan, gaps=("recompute",))
