"""Random questions of `plan`, drawn from a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.layout.layout_answer import LayoutFile
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.tracing.traced import TracedModel
from shardwright import api
from shardwright.requests.python_plan import tp_degrees_for
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload
from tests.equality import models
from tests.equality.profiled_cpu import profiled_cpu

CPU = "cpu"
_FACTORIES = tuple(f"tests.equality.models:{name}" for name in ("wide", "wide_tied"))
_CONFIG = str(Path(__file__).with_name("small_qwen.json"))


class Kind(StrEnum):
    """How a question is answered; one set of models, machines and frameworks each."""

    FRAMEWORK = "a layout of another framework"
    EXECUTOR = "a layout of our own executor"
    BLOCKS = "block by block on a GPU"
    PROFILED = "block by block on a profiled CPU"
    MIXED = "two device types"


# The share of the questions that each kind has.
_WEIGHTS = {
    Kind.FRAMEWORK: 4,
    Kind.EXECUTOR: 4,
    Kind.BLOCKS: 3,
    Kind.PROFILED: 2,
    Kind.MIXED: 2,
}
_MODELS = {
    Kind.FRAMEWORK: ("llama-3.1-8b", "mixtral-8x7b", "gpt2", "tiny-llama-demo", _CONFIG),
    Kind.EXECUTOR: ("tiny-llama-demo", _CONFIG, *_FACTORIES),
    Kind.BLOCKS: tuple(
        f"tests.equality.models:{name}" for name in ("alike", "tied", "unlike", "towers")
    ),
    Kind.PROFILED: (
        "tiny-llama-demo",
        *(f"tests.equality.models:{name}" for name in ("alike", "tied", "unlike", "towers")),
    ),
    Kind.MIXED: (_CONFIG, "tests.equality.models:unlike"),
}
_ONE_TYPE = ("1xh100-sxm", "1x4xh100-sxm", "2x4xa100-sxm-80gb", "1x4xgb200")
_MACHINES = {
    Kind.FRAMEWORK: ("1x8xh100-sxm", "2x8xh100-sxm", "2x8xa100-sxm-80gb", "4x4xgb200"),
    Kind.EXECUTOR: _ONE_TYPE,
    Kind.BLOCKS: _ONE_TYPE,
    Kind.PROFILED: (CPU,),
    Kind.MIXED: ("1x2xh100-sxm+1x2xa100-sxm-80gb", "1x2xgb200+1x2xh100-sxm"),
}
_FRAMEWORKS = ("torch", "torch-fsdp", "megatron-core", "maxtext")
_PINS: Mapping[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 4),
    "dp": (1, 2),
    "zero": (0, 1, 2, 3),
    "micro_batch": (1, 2),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv"),
    "recompute": ("none", "attention", "full"),
}
_MOST_PINS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of `plan`.

    stack  the framework; None for our own executor
    """

    kind: Kind
    model: str
    on: str
    work: Workload
    stack: str | None = None
    pins: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return profiled_cpu() if self.on == CPU else get_cluster(self.on)

    def __str__(self) -> str:
        name = Path(self.model).name if self.model == _CONFIG else self.model.rpartition(":")[2]
        pins = " ".join(f"{axis}={value}" for axis, value in self.pins.items())
        stack = f" {self.stack}" if self.stack else ""
        batch, tokens = self.work.global_batch, self.work.sequence_length
        return f"{name} on {self.on}{stack} {batch}x{tokens} {self.work.precision} {pins}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """A question with the answer of `plan`, which holds a plan."""

    question: Question
    answer: PlanFile | LayoutFile

    @property
    def traced(self) -> TracedModel:
        """The model as `plan` traces it for our own executor."""
        return traced_for(self.question)


@functools.cache
def _traced(model: str, tokens: int, precision: str, degrees: tuple[int, ...], target: str) -> Any:
    return api.trace(
        model,
        sequence_length=tokens,
        precision=precision,
        tp_degrees=degrees,
        target=target,
    )


def traced_for(question: Question) -> TracedModel:
    """The traced model of a question; every question with equal blocks shares one trace."""
    target = "cpu" if question.on == CPU else "gpu"
    degrees = (1, 2) if question.kind is Kind.EXECUTOR else (1,)
    assert set(degrees) <= set(tp_degrees_for(question.cluster)) | {1, 2}
    work = question.work
    return _traced(question.model, work.sequence_length, work.precision, degrees, target)


def answered_questions(seed: int, count: int) -> Iterator[CachedAnswer]:
    """`count` questions that have a plan; those whose pins contradict each other are left out."""
    rng = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    found = 0
    while found < count:
        question = _drawn(rng, rng.choices(kinds, weights)[0])
        answer = _answer(question)
        if answer is not None:
            found += 1
            yield CachedAnswer(question=question, answer=answer)


def _drawn(rng: random.Random, kind: Kind) -> Question:
    model = rng.choice(_MODELS[kind])
    own = kind is not Kind.FRAMEWORK
    tokens = models.TOKENS if ":" in model else rng.choice((128, 256) if own else (512, 1024))
    axes = rng.sample(list(_PINS), k=rng.randint(0, _MOST_PINS))
    if not own:
        axes = [axis for axis in axes if axis not in ("schedule", "recompute")]
    pins = {axis: rng.choice(_PINS[axis]) for axis in axes}
    if kind in (Kind.PROFILED, Kind.MIXED, Kind.BLOCKS):
        pins["tp"] = 1
    elif own:
        pins["tp"] = min(2, pins.get("tp", 1))
    precision = "fp32" if kind is Kind.PROFILED else rng.choice(("bf16", "bf16", "fp32"))
    return Question(
        kind=kind,
        model=model,
        on=rng.choice(_MACHINES[kind]),
        work=Workload(
            global_batch=rng.choice((8, 16)), sequence_length=tokens, precision=precision
        ),
        stack=None if own else rng.choice(_FRAMEWORKS),
        pins=dict(sorted(pins.items())),
    )


def _answer(question: Question) -> PlanFile | LayoutFile | None:
    """None where no layout is legal or none fits."""
    by_name = question.kind in (Kind.FRAMEWORK, Kind.EXECUTOR)
    model = question.model if by_name else traced_for(question)
    try:
        answer = api.plan(
            model,
            question.cluster,
            question.work,
            stack=question.stack,
            **question.pins,
        )
    except InputError:
        return None
    chosen = answer.chosen if isinstance(answer, LayoutFile) else answer.plan
    return None if chosen is None else answer
