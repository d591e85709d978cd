"""Every term, coefficient and tensor of a predicted run, as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import DocumentError
from profiles.units import format_bytes, format_percent, format_time
from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.brief.plan_answers import planned_layouts
from shardwright.reports.brief.plan_brief import plan_brief
from shardwright.reports.terminal import format_interval
from simulator.mfu import MFU_DEFINITION
from simulator.training_run.explain.explain_memory import MemoryExplanation
from simulator.training_run.explain.explain_run import IntervalUsed, RunExplanation, explain_run
from simulator.training_run.step.step_time import PARTS

_SHOWS = {
    "allocated": "allocated by torch",
    "reserved": "reserved by torch's allocator",
    "device": "on the device (nvidia-smi)",
}


def layout_brief(
    where: str,
    answer: LayoutFile,
    *,
    provenance: Mapping[str, object] | None = None,
    explain: bool = True,
) -> Brief:
    """The report of a framework's layout; raises DocumentError, naming `where`, if nothing fits.

    provenance  of the plan file: the command and release that wrote it
    explain     with every term of the step and its memory, by this release's coefficients
    """
    if answer.chosen is None:
        raise DocumentError(f"{where} has no layout: its status is {answer.status!r}")
    wrote = provenance or {}
    brief = plan_brief(
        planned_layouts([answer], {}),
        command=str(wrote.get("command", "")),
        version=str(wrote.get("version", "")),
    )
    if not explain:
        return brief
    explanation = explain_run(answer.chosen.run)
    return replace(brief, sections=(*brief.sections, *_sections(explanation)))


def explanation_brief(explanation: RunExplanation) -> Brief:
    """The report of one row of a table of runs."""
    run, step = explanation.run, explanation.step
    rows = tuple((one.name, one.value, one.method, one.source) for one in explanation.sources)
    sources = Section(
        title="Sources",
        tables=(Table(heads=("rests on", "value", "method", "source"), rows=rows),),
        note=f"Assumed: {'; '.join(run.defaults)}." if run.defaults else "",
    )
    return Brief(
        title=run.id,
        headline=f"{run.id}: {run.model.num_layers} layers of {run.model.hidden_size} on "
        f"{run.degrees.num_devices} {run.device}, {run.stack}, {layout_title(run)}, global batch "
        f"{run.global_batch}, sequence {run.seq_len}, {run.precision}",
        subtitle=f"step {format_interval(step.interval)}: {_interval_words(step)}",
        facts=(),
        sections=(*_sections(explanation), sources),
    )


def _sections(explanation: RunExplanation) -> tuple[Section, ...]:
    memory = Section(title="No memory", note=explanation.why_no_memory)
    if explanation.memory is not None and explanation.memory_interval is not None:
        memory = _memory(explanation.memory, explanation.memory_interval)
    return (_terms(explanation), _coefficients(explanation), memory)


def _interval_words(used: IntervalUsed) -> str:
    if used.spread is None:
        return f"90 % interval of {used.rows} left-out rows ({used.basis})"
    return (
        f"90 % interval of {used.basis}, {used.rows} rows; standard deviation "
        f"{format_percent(used.spread)}: coefficients, a new source, noise"
    )


def _terms(explanation: RunExplanation) -> Section:
    """Each part of the step with its terms."""
    total_s = explanation.step.interval.value
    rows: list[tuple[str, ...]] = []
    for part in PARTS:
        lines = [line for line in explanation.lines if line.part is part]
        if not lines:
            continue
        time_s = sum(line.time_s for line in lines)
        rows.append((part.words, format_time(time_s), format_percent(time_s / total_s), ""))
        for line in lines:
            share = format_percent(line.time_s / total_s)
            formula = f"{line.formula}\n= {line.numbers}"
            rows.append((f"- {line.name}", format_time(line.time_s), share, formula))
    rows.append(("step", format_time(total_s), "100 %", "sum of the parts"))
    heads = ("part, and its terms", ">time", ">share", "formula")
    return Section(title="The step term by term", tables=(Table(heads=heads, rows=tuple(rows)),))


def _coefficients(explanation: RunExplanation) -> Section:
    fitted = explanation.fitted
    rows = tuple(
        (
            one.name,
            f"{one.value:.4g}",
            format_percent(one.spread),
            one.origin,
            str(one.sources or "-"),
            f"{one.weight:.3f}",
            one.meaning,
        )
        for one in sorted(explanation.coefficients, key=lambda one: -abs(one.weight))
    )
    heads = ("coefficient", ">value", ">±", "from", ">sources", ">weight", "meaning")
    return Section(
        title="Fitted coefficients",
        tables=(Table(heads=heads, rows=rows),),
        note=f"Fitted on {fitted.runs} rows, {format_percent(fitted.residual)} off in the median "
        f"without the effects of their sources, {fitted.date} ({explanation.fitted_file}): "
        f"{fitted.method}. ±: standard deviation for a new source; sources: how many determine the "
        "coefficient; weight: per cent that the step changes for 1 % of the coefficient. "
        f"{MFU_DEFINITION}.",
    )


def _memory(memory: MemoryExplanation, used: IntervalUsed) -> Section:
    lines = [(line.name, format_bytes(line.memory_bytes), line.numbers) for line in memory.lines]
    lines.append(("peak", format_bytes(memory.shown_bytes), "sum of the parts"))
    tensors = tuple((one.where, one.name, format_bytes(one.memory_bytes)) for one in memory.tensors)
    ships = not memory.stack.endswith(".toml")
    file = f"profiles/data/frameworks/{memory.stack}.toml" if ships else memory.stack
    refused = f" The framework would not run it: {memory.refused}." if memory.refused else ""
    return Section(
        title=f"Peak memory {format_interval(used.interval, format_bytes)}, pipeline rank "
        f"{memory.rank}, {_SHOWS[memory.shows]}",
        tables=(
            Table(heads=("memory", ">bytes", "numbers"), rows=tuple(lines)),
            Table(heads=("tensors of", "", ">bytes"), rows=tensors),
        ),
        note=f"{_interval_words(used)}. Tensors of a layer are those of one layer and micro-batch "
        f"before recomputation. {file} ({memory.date}): {memory.source}{refused}",
    )
