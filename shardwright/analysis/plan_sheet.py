"""A plan file of any kind as lines of text and numbers, for `compare` of two plans."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.hardware.catalogue.catalog import get_device
from profiles.sourced import Sourced
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction

# The parts of a rank's peak: text, and field of RankMemory.
MEMORY_PARTS = (
    ("parameters", "parameters_bytes"),
    ("gradients", "gradients_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("activations", "activations_bytes"),
    ("transient", "transient_bytes"),
    ("buffers", "communication_bytes"),
)
_FIGURES = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSheet:
    """The content of a plan file as lines.

    `asked`, `decided`  inputs and decisions, as text
    prediction      None if nothing fits;  memory  bytes of the fullest rank, by part
    """

    asked: dict[str, str]
    decided: dict[str, str]
    prediction: Prediction | None = None
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, tuple[str, float]]:
        """Name -> (unit, value) of the plan's step, memory, money and energy."""
        named = ((name, unit, getattr(self.prediction, key, None)) for name, unit, key in _FIGURES)
        return {name: (unit, number.value) for name, unit, number in named if number is not None}

    @property
    def price(self) -> Sourced | None:
        """Price of a device-hour used for the dollars."""
        return None if self.prediction is None else self.prediction.price_usd_per_hour

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the step, by part."""
        made = self.prediction
        return {} if made is None else {part.words: time_s for part, time_s in made.seconds.items()}


def sheet_of(answer: PlanFile | LayoutFile) -> PlanSheet:
    """The lines of a plan, or of a framework's layout."""
    return _layout_sheet(answer) if isinstance(answer, LayoutFile) else _plan_sheet(answer)


def _plan_sheet(answer: PlanFile) -> PlanSheet:
    prediction = answer.prediction
    sheet = PlanSheet(asked=_inputs(answer), decided=_decisions(answer))
    if prediction is None:
        return sheet
    fullest = prediction.fullest if prediction.ranks else None
    return replace(
        sheet,
        prediction=prediction,
        memory={name: getattr(fullest, key) for name, key in MEMORY_PARTS} if fullest else {},
    )


def _inputs(answer: PlanFile) -> dict[str, str]:
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


def _decisions(answer: PlanFile) -> dict[str, str]:
    plan, why = answer.plan, answer.infeasibility
    lines = {"status": answer.status}
    if why is not None:
        lines["why nothing fits"] = f"{why.term} of stage {why.stage} of {why.nearest}"
    if plan is None:
        return lines
    per_rank = f", {plan.degrees.vpp} stages per rank" if plan.degrees.vpp > 1 else ""
    return lines | {
        "pipeline ranks (pp)": str(plan.degrees.pp),
        "replicas (dp)": str(plan.degrees.dp),
        "tensor parallel (tp)": str(plan.degrees.tp),
        "schedule": f"{plan.schedule}{per_rank}",
        "micro-batch": f"{plan.micro_batch} ({plan.num_microbatches} per step)",
        "ZeRO stage": str(plan.zero_stage),
        "optimizer in host memory": "yes" if plan.optimizer_offload else "no",
        "sequence parallel": "yes" if plan.sequence_parallel else "no",
        "blocks per stage": _runs([str(stage.num_blocks) for stage in plan.stages]),
        "recompute": _recompute(plan),
    }


def _runs(words: list[str]) -> str:
    """Run-length text: `3 x 5, 6` for `5 5 5 6`, readable for long pipelines."""
    runs = [(word, len(list(same))) for word, same in itertools.groupby(words)]
    return ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)


def _recompute(plan: Plan) -> str:
    kinds = [kind.value for stage in plan.stages for kind in stage.recompute]
    return ", ".join(f"{kind} {kinds.count(kind)} blocks" for kind in sorted(set(kinds)))


def _layout_sheet(answer: LayoutFile) -> PlanSheet:
    inputs = {"model": answer.model, "cluster": answer.cluster, "framework": answer.stack}
    inputs["assumed"] = "; ".join(answer.assumptions) or "-"
    decided = {"status": answer.status}
    if answer.infeasibility is not None:
        why = answer.infeasibility
        decided["why nothing fits"] = f"{why.term} of rank {why.rank} of {why.nearest}"
    choice = answer.chosen
    if choice is None:
        return PlanSheet(asked=inputs, decided=decided)
    run = choice.run
    inputs |= {"global batch": str(run.global_batch), "sequence length": str(run.seq_len)}
    per_rank = f", {run.degrees.vpp} stages per rank" if run.degrees.vpp > 1 else ""
    decided |= {
        "layout": layout_title(run),
        "pipeline ranks (pp)": str(run.degrees.pp),
        "replicas (dp)": str(run.degrees.dp),
        "tensor parallel (tp)": str(run.degrees.tp),
        "context parallel (cp)": str(run.degrees.cp),
        "expert parallel (ep)": str(run.degrees.ep),
        "schedule": f"{run.schedule or 'none'}{per_rank}",
        "micro-batch": f"{run.micro_batch} ({run.num_microbatches} per step)",
        "ZeRO stage": str(run.zero_stage),
        "recompute": run.recompute,
        "precision": run.precision,
        "devices": str(run.degrees.num_devices),
    }
    free = get_device(run.device).usable_bytes - choice.required_memory_bytes
    return PlanSheet(
        asked=inputs,
        decided=decided,
        prediction=choice.prediction,
        memory={"needed": choice.required_memory_bytes, "free": free},
    )
