"""Terminal reports of `shard` and of the run of a sharding file."""

from __future__ import annotations

import math
from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes, format_count, format_percent, format_time
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import table
from shardwright_placements.sharding_file import (
    Message,
    OpShardingFile,
    PlacedTensor,
    ShardedRun,
    ShardingCost,
)

_MOST_MESSAGES = 12
_PROVEN = 1e-6


def sharding_report(answer: OpShardingFile, *, explain: bool = False) -> RenderableType:
    """The report: headline, cost against Megatron's layout and the bound, weights, messages."""
    parts: list[RenderableType] = [_headline(answer)]
    if answer.cost is None:
        parts += [Text(""), Text(answer.reason)]
        parts += [Text(f"Would fit: {text}") for text in answer.fits_with]
        if not answer.fits_with:
            parts.append(
                Text(
                    "None of 4 times the memory and 8 times the devices of the last axis was seen "
                    "to fit; a smaller --micro-batch or --seq takes less"
                )
            )
    else:
        parts += [Text(""), _costs(answer, answer.cost), Text(""), _weights(answer)]
        parts += [Text(""), _messages(answer, every=explain)]
        if explain:
            parts += [Text(""), _ops(answer)]
    parts.append(Text(""))
    parts += [labelled("Assumed: ", text) for text in answer.assumptions]
    if explain:
        parts += [Text(f"Source of {name}: {text}") for name, text in answer.sources.items()]
    else:
        parts.append(Text("Every op and the sources of the numbers: --explain"))
    return Group(*parts)


def _mesh(answer: OpShardingFile) -> str:
    axes = (f"{n}{s}" for n, s in zip(answer.mesh_names, answer.mesh_sizes, strict=True))
    return " ".join(axes)


def _headline(answer: OpShardingFile) -> Text:
    one = f" (one of {answer.block_repeats})" if answer.block_repeats > 1 else ""
    what = f"{answer.block}{one} of {answer.model}" if answer.block else answer.model
    tokens = f"{answer.micro_batch} x {answer.sequence_length} tokens"
    where = f"{math.prod(answer.mesh_sizes)} devices ({_mesh(answer)}) of {answer.cluster}"
    if answer.cost is None:
        return Text.assemble(("No placements  ", "bold red"), f"{what}, {tokens}, on {where}")
    gap = answer.cost.gap
    proof = "proven optimal" if gap <= _PROVEN else f"within {format_percent(gap)} of the bound"
    return Text.assemble(
        ("Placements  ", "bold"),
        f"{what}, {tokens}, on {where}   ",
        (proof, "green"),
        f" in {format_time(answer.search_time_s)}",
    )


def _costs(answer: OpShardingFile, cost: ShardingCost) -> RenderableType:
    made = table(
        "per micro-batch",
        ">time",
        ">kernels",
        ">resharding",
        ">inside ops",
        ">weight sums",
        ">memory",
    )

    def row(name: str, x: ShardingCost) -> None:
        seconds = (x.seconds, x.work_s, x.reshard_s, x.inner_s, x.weight_sync_s)
        made.add_row(
            name, *(format_time(s) if s else "-" for s in seconds), format_bytes(x.memory_bytes)
        )

    row("these placements", cost)
    if answer.hand_plan is not None:
        row("Megatron's layout", answer.hand_plan)
    made.add_row("lower bound", format_time(cost.lower_bound_s))
    said: list[RenderableType] = [made]
    limit = answer.memory_limit_bytes
    if answer.hand_plan is not None:
        more = answer.hand_plan.seconds / cost.seconds - 1
        compared = "takes as long" if more < 5e-5 else f"takes {format_percent(more)} longer"
        over = ""
        if limit is not None and answer.hand_plan.memory_bytes > limit:
            over = f" and needs more than the {format_bytes(limit)} of a device"
        said.append(Text(f"Megatron's layout, with sequence parallelism, {compared}{over}"))
    elif answer.hand_plan_missing:
        said.append(Text(f"Megatron's layout is not there to compare: {answer.hand_plan_missing}"))
    return Group(*said)


def _weights(answer: OpShardingFile) -> RenderableType:
    made = table("weights of", "split by", "placements")
    for rule in answer.rules:
        made.add_row(rule.pattern, rule.kind, _short(rule.placements))
    return made


def _short(placements: str) -> str:
    """`input [Shard(2)]` as `input S(2)`, as DTensor prints them."""
    for long, short in (("Replicate()", "R"), ("Partial()", "P"), ("Shard(", "S(")):
        placements = placements.replace(long, short)
    return placements.replace("[", "").replace("]", "").replace(", S", ",S").replace(", R", ",R")


def _messages(answer: OpShardingFile, *, every: bool) -> RenderableType:
    heading = "messages of the whole model" if answer.block else "messages"
    made = table(heading, "axis", ">times", ">each", "of")
    listed = _grouped(answer)
    shown = listed if every else listed[:_MOST_MESSAGES]
    for message, count in shown:
        size = message.elements * _width(message.dtype)
        made.add_row(
            f"{message.phase} {message.operation.replace('_', '-')}",
            answer.mesh_names[message.axis],
            format_count(count),
            format_bytes(size),
            message.what,
        )
    if not listed:
        return Text("No messages: every device works by itself")
    hidden = len(listed) - len(shown)
    if hidden:
        rest = sum(count for _, count in listed[len(shown) :])
        return Group(made, Text(f"and {rest} smaller ones of {hidden} kinds (--explain)"))
    return made


def _grouped(answer: OpShardingFile) -> list[tuple[Message, int]]:
    """Messages grouped, the largest sum of bytes first."""
    counts: Counter[Message] = Counter()
    for message in answer.messages:
        counts[message] += message.count
    return sorted(
        counts.items(),
        key=lambda pair: (-pair[1] * pair[0].elements * _width(pair[0].dtype), pair[0].what),
    )


def _width(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bool": 1}.get(dtype, 2)


def _ops(answer: OpShardingFile) -> RenderableType:
    made = table("op", "of", "reads", "makes")
    for call in answer.calls:
        made.add_row(
            call.name,
            call.module,
            " ".join(map(_layout, call.inputs)),
            " ".join(map(_layout, call.outputs)),
        )
    return Group(made, Text("R/P: replicated, its gradient partial sums. Axes: " + _mesh(answer)))


def _layout(x: PlacedTensor) -> str:
    """`S(1)`, or `R/P` if the gradient's placement differs; axes joined by commas."""
    pairs = zip(x.forward, x.backward, strict=True)
    return ",".join(f if f == b else f"{f}/{b}" for f, b in pairs)


def sharded_run_report(found: ShardedRun) -> RenderableType:
    """Compares the run's values with those of one process, and its collectives with the plan's."""
    verdict = ("as planned", "green") if found.passed else ("NOT as planned", "bold red")
    head = Text.assemble(
        ("Ran  ", "bold"),
        f"{found.model} on {found.world_size} processes ({found.backend}, torch "
        f"{found.torch_version}), fp32: ",
        verdict,
    )
    values = Text(
        f"loss {found.loss:.6f} against {found.reference_loss:.6f} of one process; outputs "
        f"{found.output_relative_error:.1e} off, gradients of {found.parameters_checked} weights "
        f"at most {found.worst_relative_error:.1e} ({found.worst_parameter}); "
        f"{found.tolerance:.0e} is allowed"
    )
    made = table(
        "collectives", "axis", ">planned", ">counted", ">planned bytes", ">counted bytes", ""
    )
    for m in found.messages:
        made.add_row(
            f"{m.phase} {m.operation.replace('_', '-')}",
            m.axis,
            str(m.planned),
            str(m.counted),
            format_bytes(m.planned_bytes),
            format_bytes(m.counted_bytes),
            "" if m.agree else "DIFFERS",
        )
    parts: list[RenderableType] = [head, values, Text(""), made]
    for name, count in found.beside.items():
        parts.append(
            Text(f"Not in the plan, which assumes balanced routing: {count} collectives for {name}")
        )
    if found.steps:
        parts.append(
            Text(f"Forward and backward {format_time(found.step_s)} (median of {found.steps})")
        )
    return Group(*parts)
