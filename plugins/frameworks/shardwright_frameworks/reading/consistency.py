"""Derives values of a run from others, and finds contradictions between them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import whole
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.frameworks.megatron import UNEVEN
from shardwright_frameworks.shell.text_marks import Place, unknown_numbers, without_place_marks
from shardwright_frameworks.shell.variables import Variable
from simulator.schedules.schedule import schedule_kind, schedule_names

_WORLD = ("WORLD_SIZE", "NUM_GPUS", "NGPUS", "N_GPUS", "TOTAL_GPUS", "NUM_DEVICES", "NPROC")
_NODES = ("NNODES", "NUM_NODES", "N_NODES", "NODES", "NODE_NUM", "NUM_WORKERS", "WORKER_CNT")
_EACH = (
    "GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "GPU_PER_NODE", "N_GPUS_PER_NODE",
    "GPUS_PER_WORKER", "NUM_GPU_PER_NODE",
)  # fmt: skip
_DP = ("DP", "DP_SIZE", "DATA_PARALLEL_SIZE", "DATA_PARALLEL", "DP_WORLD_SIZE", "DP_DEGREE")
_DEVICES = re.compile(r"\d+(,\d+)*")
Variables = Mapping[str, Variable]


def number_of(variables: Variables, *names: str) -> tuple[int, str, Place] | None:
    """The value of the first variable that is an integer of 1 or more."""
    for name in names:
        found = variables.get(name)
        if found is not None and found.words is None and not unknown_numbers(found.text):
            number = whole(without_place_marks(found.text))
            if number is not None and number >= 1:
                return number, name, found.place
    return None


def visible_devices(variables: Variables) -> tuple[int, str, Place] | None:
    """Number of devices that a script makes visible to its processes."""
    for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        found = variables.get(name)
        if found is not None and found.words is None and _DEVICES.fullmatch(found.text):
            return found.text.count(",") + 1, name, found.place
    return None


def collect_devices_of_variables(variables: Variables, collected: Collected) -> None:
    """Collect devices from the variables that scripts set, if no launcher gives them; otherwise a
    variable with another number is a contradiction."""
    if collected.get("devices") is None:
        nodes, each = number_of(variables, *_NODES), number_of(variables, *_EACH)
        if nodes and collected.get("nodes") is None:
            collected.set("nodes", nodes[0], nodes[2], nodes[1])
        if each and collected.get("devices_per_node") is None:
            collected.set("devices_per_node", each[0], each[2], each[1])
        count, per_node = collected.count("nodes"), collected.count("devices_per_node")
        if count and per_node:
            collected.derive("devices", count * per_node, f"{count} nodes x {per_node} devices")
    world = number_of(variables, *_WORLD)
    if world is None:
        return
    devices = collected.count("devices")
    named = {each.option.lstrip("-").replace("-", "_") for each in collected.unresolved}
    if devices is None and world[0] == collected.get("nodes") and "nproc_per_node" in named:
        return  # it counts nodes; the number of devices per node is unknown
    if devices is None and world[0] == collected.get("devices_per_node"):
        return  # it counts the devices of a node
    if devices is None:
        collected.set("devices", world[0], world[2], world[1])
    elif world[0] not in (devices, 1, collected.get("nodes"), collected.get("devices_per_node")):
        collected.report_contradiction(
            "devices",
            f"{world[1]}={world[0]} ({world[2]}), but the launcher starts {devices}",
            world[2],
            collected.place("devices") or collected.place("devices_per_node"),
        )


def complete(collected: Collected, variables: Variables) -> None:
    """Derive dp, the batch and the accumulation, and report contradictions."""
    name = collected.placed.get("model.name")
    if name is not None and not {"model.figures_of", "model.flavor"} & collected.placed.keys():
        collect_figures(str(name.value), "", collected, name.place, name.option)
    nodes, each = map(collected.count_or_default, ("nodes", "devices_per_node"))
    if nodes and each:
        collected.derive("devices", nodes * each, f"{nodes} nodes x {each} devices")
    _data_parallel(collected, variables)
    _batch(collected)
    _shares(collected)
    nodes, devices = collected.count("nodes"), collected.count("devices")
    has_none = "nodes" not in {*collected.open_keys, *collected.defaults}
    if devices and each and not nodes and has_none and devices % each == 0:
        collected.derive("nodes", devices // each, f"{devices} devices / {each} of a node")
    each = collected.count("devices_per_node")
    if devices and nodes and each and nodes * each != devices and "devices" in collected.placed:
        collected.report_contradiction(
            "devices",
            f"{devices} devices ({collected.place('devices')}), but {nodes} nodes of {each}",
            collected.place("devices"),
            collected.place("nodes") or collected.place("devices_per_node"),
        )


def _model_ranks(collected: Collected) -> tuple[int | None, str]:
    """tp x pp x cp, with the framework's defaults; None if one is unresolved."""
    ranks, words = 1, []
    named = {each.option.lstrip("-").replace("-", "_") for each in collected.unresolved}
    about = {"tp": "tensor", "pp": "pipeline", "cp": "context"}
    for axis in ("tp", "pp", "cp"):
        degree = collected.count(axis)
        if degree is None:
            if any((about[axis] in name and "size" in name) or name == axis for name in named):
                return None, ""
            degree = collected.count_or_default(axis)
        if degree is None:
            return None, ""
        ranks *= degree
        words.append(f"{axis} {degree}" + ("" if axis in collected.placed else " by default"))
    return ranks, " x ".join(words)


def _data_parallel(collected: Collected, variables: Variables) -> None:
    ranks, words = _model_ranks(collected)
    devices = collected.count("devices")
    if not ranks:
        return
    placed = collected.count("dp")
    if devices is None:
        if placed is not None and "devices" not in collected.open_keys:
            collected.derive("devices", placed * ranks, f"dp {placed} x {words}")
        return
    if devices % ranks:
        collected.report_contradiction(
            "dp",
            f"{words} = {ranks} ranks of one copy do not divide {devices} devices",
            collected.place("devices")
            or collected.place("nodes")
            or collected.place("devices_per_node"),
            collected.place("pp") or collected.place("tp"),
            impossible=True,
        )
        return
    dp = devices // ranks
    if placed is None:
        collected.derive("dp", dp, f"{devices} devices / ({words})")
    elif placed != dp:
        collected.report_contradiction(
            "dp",
            f"dp is {placed} ({collected.place('dp')}), but {devices} devices / ({words}) = {dp}",
            collected.place("dp"),
            collected.place("devices") or collected.place("devices_per_node"),
            impossible=True,
        )
    named = number_of(variables, *_DP)
    if named is not None and named[0] != (placed or dp):
        collected.report_contradiction(
            "dp",
            f"{named[1]}={named[0]} ({named[2]}), but {devices} devices / ({words}) = {dp}",
            named[2],
            collected.place("devices") or collected.place("devices_per_node"),
        )


def _batch(collected: Collected) -> None:
    dp, micro = collected.count("dp"), collected.count("micro_batch")
    total, passes = collected.count("global_batch"), collected.count("gradient_accumulation")
    if total is None and dp and micro:
        if passes is None and "gradient_accumulation" in collected.open_keys:
            collected.open_keys.add("global_batch")
        elif passes:
            how = f"micro-batch {micro} x {passes} passes x dp {dp}"
            collected.derive("global_batch", micro * passes * dp, how)
        else:
            collected.default(f"micro-batch {micro} x dp {dp}, one pass", global_batch=micro * dp)
        return
    if total and micro and passes and dp is None and total % (micro * passes) == 0:
        dp = total // (micro * passes)
        collected.derive("dp", dp, f"batch {total} / (micro-batch {micro} x {passes} passes)")
        _data_parallel(collected, {})
        return
    if total and micro and not dp:  # the passes follow from the unknown number of devices
        collected.defaults.pop("gradient_accumulation", None)
    if not (total and dp):
        return
    if micro and passes and micro * passes * dp != total:
        collected.report_contradiction(
            "global_batch",
            f"a batch of {total} ({collected.place('global_batch')}) is not micro-batch {micro} x "
            f"{passes} passes x dp {dp} = {micro * passes * dp}",
            collected.place("global_batch"),
            collected.place("gradient_accumulation") or collected.place("micro_batch"),
        )
    elif micro and total % (micro * dp):
        collected.report_contradiction(
            "global_batch",
            f"a batch of {total} ({collected.place('global_batch')}) is no multiple of micro-batch "
            f"{micro} x dp {dp} = {micro * dp}",
            collected.place("global_batch"),
            collected.place("micro_batch"),
        )
    elif micro and not passes:
        how = f"batch {total} / (micro-batch {micro} x dp {dp})"
        collected.derive("gradient_accumulation", total // (micro * dp), how)
    elif total % dp:
        collected.report_contradiction(
            "global_batch",
            f"a batch of {total} ({collected.place('global_batch')}) is no multiple of dp {dp}",
            collected.place("global_batch"),
            collected.place("dp"),
        )


# Degrees and the figures that they must divide, with names for both.
_DIVIDES = (
    ("tp", "model.num_heads", "attention heads"),
    ("pp", "model.num_layers", "layers"),
    ("ep", "model.num_experts", "experts"),
)


def _shares(collected: Collected) -> None:
    for axis, figure, words in _DIVIDES:
        degree, number = collected.count(axis), collected.count(figure)
        flexible = axis == "pp" and (
            collected.get("framework") != "megatron-lm"
            or any(name.rpartition(".")[2] in UNEVEN for _, name in collected.used)
        )
        padded = axis == "pp" and collected.get("vpp")
        if degree and number and number % degree and not flexible and not padded:
            collected.report_contradiction(
                axis,
                f"{axis} {degree} ({collected.place(axis)}) does not divide {number} {words} "
                f"({collected.place(figure)})",
                collected.place(axis),
                collected.place(figure),
                impossible=True,
            )
    _expert_groups(collected)
    _expert_schedule(collected)
    _without_effect(collected)
    ep, experts = collected.count("ep"), collected.count("model.num_experts")
    open_ = any("experts" in each.option for each in collected.unresolved)
    if ep and ep > 1 and not experts and not open_ and collected.count("model.hidden_size"):
        collected.report_contradiction(
            "ep", f"ep {ep} ({collected.place('ep')}), but the model has no experts",
            collected.place("ep"),
        )  # fmt: skip


# Frameworks whose expert groups are cut out of the ranks of one pipeline stage.
_EXPERTS_INSIDE = frozenset(
    {"megatron-lm", "megatron-deepspeed", "megatron-bridge", "nemo", "primus", "flagscale",
     "torchtitan", "automodel", "nemo-rl"}
)  # fmt: skip


def _expert_groups(collected: Collected) -> None:
    """Report an ep (times etp, if set) that does not divide the devices / pp ranks of a stage."""
    ep, devices = collected.count("ep"), collected.count("devices")
    pp = collected.count_or_default("pp")
    if not (ep and devices and pp) or collected.get("framework") not in _EXPERTS_INSIDE:
        return
    ranks, etp = devices // pp, collected.count("etp") or 1
    if devices % pp == 0 and ranks % (ep * etp):
        words = f"ep {ep} x etp {etp}" if etp > 1 else f"ep {ep}"
        collected.report_contradiction(
            "ep",
            f"{words} ({collected.place('ep')}) does not divide the {ranks} ranks of a stage "
            f"({devices} devices / pp {pp})",
            collected.place("ep"),
            collected.place("pp") or collected.place("devices") or collected.place("nodes"),
            impossible=True,
        )


def _expert_schedule(collected: Collected) -> None:
    """Report a schedule that hides expert messages without experts on several ranks, or with
    experts recomputed in the backward; the framework refuses both."""
    placed = collected.placed.get("schedule")
    ep, recompute = collected.count_or_default("ep"), str(collected.get("recompute"))
    if placed is None or ep is None or str(placed.value) not in schedule_names():
        return
    if not schedule_kind(str(placed.value)).suits(ep=ep, recompute=recompute):
        axis = "ep" if ep == 1 else "recompute"
        needs = "ep of 2 or more" if ep == 1 else "experts that are not computed again"
        value = ep if ep == 1 else recompute
        collected.report_contradiction(
            "schedule",
            f"{placed.option} ({placed.place}) needs {needs}; {axis} {value} "
            f"({collected.place(axis) or 'default'})",
            placed.place,
            collected.place(axis),
            impossible=True,
        )


def _without_effect(collected: Collected) -> None:
    """Report keys without effect given the other keys."""
    rules = (
        ("sequence_parallel", "tp", "tensor parallelism"),
        ("vpp", "pp", "a pipeline"),
        ("schedule", "pp", "a pipeline"),
    )
    for key, axis, words in rules:
        placed = collected.placed.get(key)
        is_on = placed is not None and str(placed.value) not in ("False", "1", "none")
        told = any(each.field == key for each in collected.contradictions)
        if placed is None or not is_on or told or collected.count_or_default(axis) != 1:
            continue
        why = f"no effect without {words} ({axis} 1)"
        collected.report_unused(placed.option, placed.place, why)
