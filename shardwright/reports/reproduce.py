"""Commands, versions and hashes to reproduce the numbers of a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from planner.space import EXECUTOR
from profiles.document import content_hash
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Commands in order, and (name, value) pairs of the versions and hashes they depend on."""

    commands: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    note: str = ""


def recipe(
    plan: Plan,
    measured: Measurement | None,
    *,
    version: str,
    provenance: Mapping[str, object] | None = None,
) -> Recipe:
    """The commands that make this plan, its run and their comparison.

    version     of this release
    provenance  of the plan file: the command and release that wrote it

    Degrees, schedule, micro-batch, ZeRO stage and recompute kinds are fixed to those of the plan,
    so the deterministic search only has to find the cuts between stages.
    """
    commands = []
    if plan.cluster == "local":
        commands.append(_profile_command(plan))
    commands.append(plan_command(plan))
    if measured is not None:
        commands.append(_run_command(measured))
        commands.append("shardwright compare plan.json run.json --html report.html")
    else:
        commands.append("shardwright predict plan.json --html report.html")
    known = dict(provenance or {})
    made_by = str(known.get("command", ""))
    facts = [
        ("plan made by", made_by),
        ("plan hash", content_hash(plan)),
        ("model", f"{plan.model}, hash {plan.model_hash}"),
        ("cluster", f"{plan.cluster}, hash {plan.cluster_hash}"),
        ("sequence length", str(_sequence(plan).get("--seq", ""))),
        ("optimizer", plan.workload.optimizer),
        ("seed", str(plan.seed)),
        ("solver workers", str(plan.solver_workers)),
        ("shardwright", _versions(version, str(known.get("version", "")))),
    ]
    if measured is not None:
        facts += [(name, text) for name, text in sorted(measured.versions.items())]
        facts += [
            ("backend", measured.backend),
            ("processes", str(measured.world_size)),
            ("run on", measured.machine),
            ("run date", measured.date),
        ]
    local = (
        "A new profile measures the machine anew: its hash and the prediction change a little."
        if plan.cluster == "local"
        else ""
    )
    return Recipe(commands=tuple(commands), facts=tuple((k, v) for k, v in facts if v), note=local)


def plan_command(plan: Plan) -> str:
    """`shardwright plan` with every axis pinned to the plan's value."""
    degrees = plan.degrees
    work = plan.workload
    used = {kind for stage in plan.stages for kind in stage.recompute}
    flags: dict[str, object] = {
        "--on": plan.cluster,
        "--global-batch": work.global_batch,
        **_sequence(plan),
        "--precision": work.precision,
        "--optimizer": work.optimizer,
        "--tp": degrees.tp,
        "--pp": degrees.pp,
        "--dp": degrees.dp,
        **({"--dp-replicate": degrees.dp_replicate} if degrees.dp_replicate > 1 else {}),
        "--vpp": degrees.vpp,
        "--zero": plan.zero_stage,
        "--schedule": plan.schedule,
        "--micro-batch": plan.micro_batch,
        "--recompute": ",".join(kind.value for kind in Recompute if kind in used),
        "--seed": plan.seed,
        "-o": "plan.json",
    }
    words = ["shardwright", "plan", plan.model]
    switches = ["--optimizer-offload"] if plan.optimizer_offload else []
    switches += ["--sequence-parallel"] if plan.sequence_parallel else []
    words += ["--stack", EXECUTOR, *switches] if switches else []
    for flag, value in flags.items():
        words += [flag, str(value)]
    return shlex.join(words)


def _sequence(plan: Plan) -> dict[str, object]:
    """The flag of the sequence length; empty if the model has none."""
    work = plan.workload
    return {"--seq": work.sequence_length} if work.counted_in == "tokens" else {}


def _profile_command(plan: Plan) -> str:
    devices = str(plan.degrees.num_devices)
    words = ["shardwright", "profile", "--devices", devices, "--model", plan.model]
    words += [str(word) for pair in _sequence(plan).items() for word in pair]
    words += ["--micro-batch", str(plan.micro_batch), "--precision", plan.workload.precision]
    return shlex.join(words)


def _run_command(measured: Measurement) -> str:
    words = ["shardwright", "run", "plan.json", "--steps", str(len(measured.steps))]
    words += ["--check"] if measured.gradient_check is not None else []
    words += ["--device", "cuda"] if measured.backend == "nccl" else []
    return shlex.join([*words, "-o", "run.json"])


def _versions(now: str, then: str) -> str:
    """The release that made the plan, and the one that wrote the report if it differs."""
    return f"{then} (report by {now})" if then and then != now else now
