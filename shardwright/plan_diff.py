"""Two plans beside each other: what was asked, what was decided, what it brings, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profiles.document import encode
from profiles.units import format_bytes, format_percent, format_time
from simulator.plan import Plan
from simulator.plan_file import PlanFile
from simulator.prediction import Interval, Prediction, RankMemory

_NAMED = 3  # parts of the step that the reason names at most
_NOTICED = 0.05  # of the change of the step: parts that moved less are not part of the reason
_QUESTION = ("model", "cluster", "global batch", "sequence length", "precision", "optimizer")
_MEMORY = (
    ("parameters", "parameters_bytes"),
    ("gradients", "gradients_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("activations", "activations_bytes"),
    ("transient", "transient_bytes"),
    ("buffers", "communication_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line of the diff of two plans."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number in both plans; None where a plan has none.

    unit  `s`, `bytes`, `usd`, `kwh`, `per_s` or `share`
    """

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """after - before."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def relative(self) -> float | None:
        """(after - before) / before, None where before is 0 or missing."""
        return (
            self.difference / self.before if self.difference is not None and self.before else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """The difference of two plan files.

    asked, decided  what differs in the question and in the plan, in words; equal entries are left
                    out
    figures         what the plans bring: step, MFU, tokens, peak memory, money, energy
    parts           of the step of each critical rank; they add up to its step
    memory          of each plan's fullest rank at its peak; they add up to its peak
    reason          one sentence: what makes the second faster or slower
    """

    asked: tuple[Difference, ...]
    decided: tuple[Difference, ...]
    figures: tuple[Change, ...]
    parts: tuple[Change, ...]
    memory: tuple[Change, ...]
    reason: str

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        numbers = (*self.figures, *self.parts, *self.memory)
        return not self.asked and not self.decided and all(n.before == n.after for n in numbers)


def diff_plans(before: PlanFile, after: PlanFile) -> PlanDiff:
    """What is different in the second plan file, and why its step is another."""
    a, b = before.prediction, after.prediction
    return PlanDiff(
        asked=_differences(_asked(before), _asked(after)),
        decided=_differences(_decided(before), _decided(after)),
        figures=_figures(a, b),
        parts=_parts(a, b),
        memory=_memory(a, b),
        reason=_reason(before, after),
    )


def plan_diff_data(diff: PlanDiff) -> dict[str, Any]:
    """The difference as plain values for JSON; every change carries difference and relative, null
    where there is none."""

    def values(changes: Iterable[Change]) -> list[dict[str, Any]]:
        return [
            {
                **dict.fromkeys(("before", "after")),
                **encode(change),
                "difference": change.difference,
                "relative": change.relative,
            }
            for change in changes
        ]

    return {
        "equal": diff.equal,
        "asked": encode(diff.asked),
        "decided": encode(diff.decided),
        "figures": values(diff.figures),
        "parts": values(diff.parts),
        "memory": values(diff.memory),
        "reason": diff.reason,
    }


def _differences(a: dict[str, str], b: dict[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name=name, before=a.get(name, "-"), after=b.get(name, "-"))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def _asked(answer: PlanFile) -> dict[str, str]:
    plan = answer.plan
    if plan is None:
        return {}
    work = plan.workload
    return {
        "model": plan.model,
        "model content": plan.model_hash,
        "cluster": plan.cluster,
        "cluster content": plan.cluster_hash,
        "global batch": str(work.global_batch),
        "sequence length": str(work.sequence_length),
        "precision": work.precision,
        "optimizer": work.optimizer,
        "assumed": "; ".join(answer.assumptions) or "-",
    }


def _decided(answer: PlanFile) -> dict[str, str]:
    plan, why = answer.plan, answer.infeasibility
    found = {"status": answer.status}
    if why is not None:
        found["why nothing fits"] = f"{why.term} of stage {why.stage} of {why.nearest}"
    if plan is None:
        return found
    per_rank = f", {plan.vpp} stages per rank" if plan.vpp > 1 else ""
    return found | {
        "pipeline ranks (pp)": str(plan.pp),
        "replicas (dp)": str(plan.dp),
        "tensor parallel (tp)": str(plan.tp),
        "schedule": f"{plan.schedule}{per_rank}",
        "micro-batch": f"{plan.micro_batch} ({plan.num_microbatches} per step)",
        "ZeRO stage": str(plan.zero_stage),
        "blocks per stage": _runs([str(stage.num_blocks) for stage in plan.stages]),
        "recompute": _recompute(plan),
    }


def _runs(words: list[str]) -> str:
    """`5 5 5 6` as `3 x 5, 6`: long pipelines stay readable."""
    said: list[tuple[str, int]] = []
    for word in words:
        if said and said[-1][0] == word:
            said[-1] = (word, said[-1][1] + 1)
        else:
            said.append((word, 1))
    return ", ".join(word if count == 1 else f"{count} x {word}" for word, count in said)


def _recompute(plan: Plan) -> str:
    kinds = [kind.value for stage in plan.stages for kind in stage.recompute]
    return ", ".join(f"{kind} {kinds.count(kind)} blocks" for kind in sorted(set(kinds)))


def _figures(a: Prediction | None, b: Prediction | None) -> tuple[Change, ...]:
    kinds = (
        ("step", "s", "step_time_s"),
        ("MFU", "share", "mfu"),
        ("tokens per second", "per_s", "tokens_per_s"),
        ("samples per second", "per_s", "samples_per_s"),
        ("peak memory", "bytes", "peak_memory_bytes"),
        ("$ per M tokens", "usd", "usd_per_million_tokens"),
        ("$ per M samples", "usd", "usd_per_million_samples"),
        ("kWh per M tokens", "kwh", "kwh_per_million_tokens"),
        ("kWh per M samples", "kwh", "kwh_per_million_samples"),
    )
    return tuple(
        Change(name=name, unit=unit, before=_value(a, field), after=_value(b, field))
        for name, unit, field in kinds
        if _value(a, field) is not None or _value(b, field) is not None
    )


def _value(prediction: Prediction | None, name: str) -> float | None:
    found: Interval | None = getattr(prediction, name) if prediction is not None else None
    return found.value if found is not None else None


def _parts(a: Prediction | None, b: Prediction | None) -> tuple[Change, ...]:
    first, second = _seconds(a), _seconds(b)
    names = dict.fromkeys([*first, *second])
    return tuple(
        Change(
            name=name.replace("_", " "),
            unit="s",
            before=first.get(name, 0.0) if a else None,
            after=second.get(name, 0.0) if b else None,
        )
        for name in names
        if first.get(name) or second.get(name)
    )


def _seconds(prediction: Prediction | None) -> dict[str, float]:
    return {p.name: p.time_s for p in prediction.components} if prediction is not None else {}


def _memory(a: Prediction | None, b: Prediction | None) -> tuple[Change, ...]:
    first, second = _fullest(a), _fullest(b)
    made = [
        Change(
            name=name,
            unit="bytes",
            before=getattr(first, field) if first else None,
            after=getattr(second, field) if second else None,
        )
        for name, field in _MEMORY
    ]
    return tuple(change for change in made if change.before or change.after)


def _fullest(prediction: Prediction | None) -> RankMemory | None:
    if prediction is None or not prediction.ranks:
        return None
    return max(prediction.ranks, key=lambda rank: rank.peak_bytes / rank.capacity_bytes)


def _reason(before: PlanFile, after: PlanFile) -> str:
    a, b = before.prediction, after.prediction
    if a is None or b is None:
        which = "neither plan file holds" if a is b else "one plan file does not hold"
        return f"{which} a plan, so there are no times to compare"
    change_s = b.step_time_s.value - a.step_time_s.value
    if abs(change_s) <= 1e-9 * a.step_time_s.value:
        return "the second takes as long as the first"
    what = "faster" if change_s < 0 else "slower"
    share = format_percent(abs(change_s) / a.step_time_s.value)
    moved = sorted(
        (part for part in _parts(a, b) if abs(part.difference or 0.0) > _NOTICED * abs(change_s)),
        key=lambda part: (-abs(part.difference or 0.0), part.name),
    )
    with_it = [p for p in moved if (p.difference or 0.0) * change_s > 0][:_NAMED]
    against = [p for p in moved if (p.difference or 0.0) * change_s < 0][:_NAMED]
    said = f"the second is {share} {what}: {_list(with_it)}"
    if against:
        said += f", against {_list(against)}"
    said += _room(a, b) if change_s < 0 else ""
    if not _apart(a.step_time_s, b.step_time_s):
        said += ". Their intervals overlap: a run may show the contrary"
    if other := [name for name in _QUESTION if _asked(before)[name] != _asked(after)[name]]:
        said += (
            f". They answer different questions ({', '.join(other)}): a step is not the same work"
        )
    return said


def _list(parts: list[Change]) -> str:
    said = []
    for part in parts:
        moved_s = part.difference or 0.0
        said.append(f"{format_time(abs(moved_s))} {'less' if moved_s < 0 else 'more'} {part.name}")
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _room(a: Prediction, b: Prediction) -> str:
    """The memory that a faster plan takes for it."""
    more = b.peak_memory_bytes.value - a.peak_memory_bytes.value
    return f", for {format_bytes(more)} more memory" if more > 0 else ""


def _apart(a: Interval, b: Interval) -> bool:
    return a.high < b.low or b.high < a.low
