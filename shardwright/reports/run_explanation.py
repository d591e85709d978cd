"""What `predict --runs --explain-run` prints: one row's prediction, number by number."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes, format_percent, format_time
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import format_interval, table
from simulator.training_run.explain.explain_memory import MemoryExplanation
from simulator.training_run.explain.explain_run import IntervalUsed, RunExplanation
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import PARTS

_SHOWS = {
    "allocated": "allocated by torch",
    "reserved": "reserved by torch's allocator",
    "device": "on the device (nvidia-smi)",
}


def explanation_report(found: RunExplanation) -> RenderableType:
    """The step with its terms, coefficients and sources, then the memory, at most 100 columns."""
    used = found.step
    parts: list[RenderableType] = [
        Text.assemble((found.run.id, "bold"), f": {_layout(found.run)}"),
        Text(f"step {format_interval(used.interval)}"),
        Text(_regime(used)),
        Text(""),
        _terms(found),
        Text(""),
        _coefficients(found),
        Text(
            f"Fitted on {found.fitted.runs} rows, {format_percent(found.fitted.residual)} off in "
            f"the median without the effects of their sources, {found.fitted.date} "
            f"({found.fitted_file}): {found.fitted.method}."
        ),
        Text(
            "sources: how many determine the coefficient; weight: per cent that the step changes "
            "for 1 % of the coefficient; ±: standard deviation for a new source."
        ),
        Text(""),
        _sources(found),
        Text(""),
    ]
    parts += [labelled("Assumed: ", said, style="dim") for said in found.run.defaults]
    if found.memory is None:
        parts.append(Text(f"No memory: {found.why_no_memory}"))
    elif found.memory_interval is not None:
        parts += [Text(""), *_memory(found.memory, found.memory_interval)]
    return Group(*parts)


def _layout(run: TrainingRun) -> str:
    degrees = " ".join(
        f"{name}{value}"
        for name, value in (
            ("tp", run.degrees.tp),
            ("pp", run.degrees.pp),
            ("vpp", run.degrees.vpp),
            ("dp", run.degrees.dp),
            ("cp", run.degrees.cp),
            ("ep", run.degrees.ep),
        )
        if value > 1 or name in ("tp", "pp", "dp")
    )
    return (
        f"{run.model.num_layers} layers of {run.model.hidden_size} on {run.degrees.num_devices} "
        f"{run.device}, {run.stack}, {degrees}, ZeRO {run.zero_stage}, micro-batch "
        f"{run.micro_batch}, global batch {run.global_batch}, sequence {run.seq_len}, "
        f"{run.precision}, {run.schedule or 'no pipeline'}, recompute {run.recompute}"
    )


def _regime(used: IntervalUsed) -> str:
    if used.spread is None:
        return f"90 % interval of {used.rows} left-out rows ({used.basis})"
    return (
        f"90 % interval of {used.basis}, {used.rows} rows; standard deviation "
        f"{format_percent(used.spread)}: coefficients, a new source, noise"
    )


def _terms(found: RunExplanation) -> RenderableType:
    rows = table("part", ">time", ">share", "formula")
    total = found.step.interval.value
    for part in PARTS:
        lines = [line for line in found.lines if line.part is part]
        if not lines:
            continue
        time_s = sum(line.time_s for line in lines)
        rows.add_row(
            part.words, format_time(time_s), format_percent(time_s / total), "", style="bold"
        )
        for line in lines:
            rows.add_row(
                f"  {line.name}",
                format_time(line.time_s),
                format_percent(line.time_s / total),
                Text.assemble(line.formula, ("\n= " + line.numbers, "dim")),
            )
    rows.add_row("step", format_time(total), "100 %", "sum of the parts", style="bold")
    rows.columns[0].max_width = 27
    return rows


def _coefficients(found: RunExplanation) -> RenderableType:
    rows = table("coefficient", ">value", ">±", "from", ">sources", ">weight", "meaning")
    for x in sorted(found.coefficients, key=lambda x: -abs(x.weight)):
        value, weight = f"{x.value:.4g}", f"{x.weight:.3f}"
        error, count = format_percent(x.spread), str(x.sources or "-")
        rows.add_row(x.name, value, error, x.origin, count, weight, x.meaning)
    rows.columns[0].overflow = "fold"
    return rows


def _sources(found: RunExplanation) -> RenderableType:
    rows = table("rests on", "source")
    for x in found.sources:
        rows.add_row(
            Text.assemble(x.name, (f"\n{x.value}; {x.method}".replace("\n; ", "\n"), "dim")),
            x.source,
        )
    rows.columns[0].max_width = 38
    # Sources are there to be followed: a long link is folded, never cut.
    rows.columns[1].overflow = "fold"
    return rows


def _memory(found: MemoryExplanation, used: IntervalUsed) -> list[RenderableType]:
    rows = table("memory", ">bytes", "numbers")
    rows.columns[2].overflow = "fold"
    for line in found.lines:
        rows.add_row(line.name, format_bytes(line.memory_bytes), line.numbers)
    rows.add_row("peak", format_bytes(found.shown_bytes), "sum of the parts", style="bold")
    tensors = table("tensors of", "", ">bytes")
    for tensor in found.tensors:
        tensors.add_row(tensor.where, tensor.name, format_bytes(tensor.memory_bytes))
    ships = not found.stack.endswith(".toml")
    file = f"profiles/data/frameworks/{found.stack}.toml" if ships else found.stack
    parts: list[RenderableType] = [
        Text(
            f"peak memory {format_interval(used.interval, format_bytes)}, pipeline rank "
            f"{found.rank}, {_SHOWS[found.shows]}"
        ),
        Text(_regime(used)),
        Text(""),
        rows,
        Text(""),
        tensors,
        Text(
            "A layer's are those of one layer and micro-batch before recomputation. "
            f"{file} ({found.date}): {found.source}"
        ),
    ]
    if found.refused:
        parts.append(Text(f"The stack would not run it: {found.refused}"))
    return parts
