"""What follows from the values of a run, and what of them cannot be true together."""

from __future__ import annotations

from collections.abc import Mapping

from interop.configs.findings import Findings
from interop.configs.option_words import whole
from interop.shell.text_marks import Place, unknown_numbers, without_place_marks
from interop.shell.variables import Variable

_WORLD = ("WORLD_SIZE", "NUM_GPUS", "NGPUS", "N_GPUS", "TOTAL_GPUS", "NUM_DEVICES", "NPROC")
_NODES = ("NNODES", "NUM_NODES", "N_NODES", "NODES", "NODE_NUM", "NUM_WORKERS", "WORKER_CNT")
_EACH = (
    "GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "GPU_PER_NODE", "N_GPUS_PER_NODE",
    "GPUS_PER_WORKER", "NUM_GPU_PER_NODE",
)  # fmt: skip
_DP = ("DP", "DP_SIZE", "DATA_PARALLEL_SIZE", "DATA_PARALLEL", "DP_WORLD_SIZE", "DP_DEGREE")
Variables = Mapping[str, Variable]


def number_of(variables: Variables, *names: str) -> tuple[int, str, Place] | None:
    """The first of the variables that is a whole number of 1 or more."""
    for name in names:
        found = variables.get(name)
        if found is not None and found.words is None and not unknown_numbers(found.text):
            number = whole(without_place_marks(found.text))
            if number is not None and number >= 1:
                return number, name, found.place
    return None


def say_devices_of_variables(variables: Variables, findings: Findings) -> None:
    """Devices by the variables that scripts set for them, where no launcher says them; where one
    does, a variable that says another number is a contradiction."""
    if findings.get("devices") is None:
        nodes, each = number_of(variables, *_NODES), number_of(variables, *_EACH)
        if nodes and findings.get("nodes") is None:
            findings.say("nodes", nodes[0], nodes[2], nodes[1])
        if each and findings.get("devices_per_node") is None:
            findings.say("devices_per_node", each[0], each[2], each[1])
        count, per_node = findings.count("nodes"), findings.count("devices_per_node")
        if count and per_node:
            findings.derive("devices", count * per_node, f"{count} nodes x {per_node} devices")
    world = number_of(variables, *_WORLD)
    if world is None:
        return
    devices = findings.count("devices")
    named = {each.option.lstrip("-").replace("-", "_") for each in findings.unresolved}
    if devices is None and world[0] == findings.get("nodes") and "nproc_per_node" in named:
        return  # it counts nodes, and how many devices each has is not told
    if devices is None:
        findings.say("devices", world[0], world[2], world[1])
    elif world[0] not in (devices, 1, findings.get("nodes"), findings.get("devices_per_node")):
        findings.contradict(
            "devices",
            f"{world[1]}={world[0]} ({world[2]}), but the launcher starts {devices}",
            world[2],
            findings.place("devices") or findings.place("devices_per_node"),
        )


def complete(findings: Findings, variables: Variables) -> None:
    """Derives dp, the batch and the accumulation, and names what contradicts."""
    nodes, each = findings.count_or_default("nodes"), findings.count("devices_per_node")
    if nodes and each:
        findings.derive("devices", nodes * each, f"{nodes} nodes x {each} devices")
    _data_parallel(findings, variables)
    _batch(findings)
    _shares(findings)
    nodes, devices = findings.count("nodes"), findings.count("devices")
    if devices and nodes and each and nodes * each != devices and "devices" in findings.said:
        findings.contradict(
            "devices",
            f"{devices} devices ({findings.place('devices')}), but {nodes} nodes of {each}",
            findings.place("devices"),
            findings.place("nodes") or findings.place("devices_per_node"),
        )


def _model_ranks(findings: Findings) -> tuple[int | None, str]:
    """tp x pp x cp, silent degrees by the framework's default; None where one is not known: named
    but not told."""
    ranks, words = 1, []
    named = {each.option.lstrip("-").replace("-", "_") for each in findings.unresolved}
    about = {"tp": "tensor", "pp": "pipeline", "cp": "context"}
    for axis in ("tp", "pp", "cp"):
        degree = findings.count(axis)
        if degree is None:
            if any((about[axis] in name and "size" in name) or name == axis for name in named):
                return None, ""
            degree = findings.count_or_default(axis)
        if degree is None:
            return None, ""
        ranks *= degree
        words.append(f"{axis} {degree}" + ("" if axis in findings.said else " by default"))
    return ranks, " x ".join(words)


def _data_parallel(findings: Findings, variables: Variables) -> None:
    ranks, words = _model_ranks(findings)
    devices = findings.count("devices")
    if not ranks:
        return
    said = findings.count("dp")
    if devices is None:
        if said is not None:
            findings.derive("devices", said * ranks, f"dp {said} x {words}")
        return
    if devices % ranks:
        findings.contradict(
            "dp",
            f"{words} = {ranks} ranks of one copy do not divide {devices} devices",
            findings.place("devices")
            or findings.place("nodes")
            or findings.place("devices_per_node"),
            findings.place("pp") or findings.place("tp"),
        )
        return
    dp = devices // ranks
    if said is None:
        findings.derive("dp", dp, f"{devices} devices / ({words})")
    elif said != dp:
        findings.contradict(
            "dp",
            f"dp is {said} ({findings.place('dp')}), but {devices} devices / ({words}) = {dp}",
            findings.place("dp"),
            findings.place("devices") or findings.place("devices_per_node"),
        )
    own = number_of(variables, *_DP)
    if own is not None and own[0] != (said or dp):
        findings.contradict(
            "dp",
            f"{own[1]}={own[0]} ({own[2]}), but {devices} devices / ({words}) = {dp}",
            own[2],
            findings.place("devices") or findings.place("devices_per_node"),
        )


def _batch(findings: Findings) -> None:
    dp, micro = findings.count("dp"), findings.count("micro_batch")
    total, passes = findings.count("global_batch"), findings.count("gradient_accumulation")
    if total is None and dp and micro:
        if passes:
            how = f"micro-batch {micro} x {passes} passes x dp {dp}"
            findings.derive("global_batch", micro * passes * dp, how)
        else:
            findings.default(f"micro-batch {micro} x dp {dp}, one pass", global_batch=micro * dp)
        return
    if total and micro and passes and dp is None and total % (micro * passes) == 0:
        dp = total // (micro * passes)
        findings.derive("dp", dp, f"batch {total} / (micro-batch {micro} x {passes} passes)")
        _data_parallel(findings, {})
        return
    if not (total and dp):
        return
    if micro and passes and micro * passes * dp != total:
        findings.contradict(
            "global_batch",
            f"a batch of {total} ({findings.place('global_batch')}) is not micro-batch {micro} x "
            f"{passes} passes x dp {dp} = {micro * passes * dp}",
            findings.place("global_batch"),
            findings.place("gradient_accumulation") or findings.place("micro_batch"),
        )
    elif micro and total % (micro * dp):
        findings.contradict(
            "global_batch",
            f"a batch of {total} ({findings.place('global_batch')}) is no multiple of micro-batch "
            f"{micro} x dp {dp} = {micro * dp}",
            findings.place("global_batch"),
            findings.place("micro_batch"),
        )
    elif micro and not passes:
        how = f"batch {total} / (micro-batch {micro} x dp {dp})"
        findings.derive("gradient_accumulation", total // (micro * dp), how)
    elif total % dp:
        findings.contradict(
            "global_batch",
            f"a batch of {total} ({findings.place('global_batch')}) is no multiple of dp {dp}",
            findings.place("global_batch"),
            findings.place("dp"),
        )


# What one degree must divide: the degree, the figure, and words for both.
_DIVIDES = (
    ("tp", "model.num_heads", "attention heads"),
    ("pp", "model.num_layers", "layers"),
    ("ep", "model.num_experts", "experts"),
)


def _shares(findings: Findings) -> None:
    for axis, figure, words in _DIVIDES:
        degree, number = findings.count(axis), findings.count(figure)
        flexible = axis == "pp" and (findings.get("framework") not in ("megatron-lm",))
        padded = axis == "pp" and findings.get("vpp")
        if degree and number and number % degree and not flexible and not padded:
            findings.contradict(
                axis,
                f"{axis} {degree} ({findings.place(axis)}) does not divide {number} {words} "
                f"({findings.place(figure)})",
                findings.place(axis),
                findings.place(figure),
            )
    ep, experts = findings.count("ep"), findings.count("model.num_experts")
    open_ = any("experts" in each.option for each in findings.unresolved)
    if ep and ep > 1 and not experts and not open_ and findings.count("model.num_layers"):
        findings.contradict(
            "ep", f"ep {ep} ({findings.place('ep')}), but the model has no experts",
            findings.place("ep"),
        )  # fmt: skip
