"""Reads the Sailor folder: runs, layer profiles and network measurements, as values.

Field meanings were read in Sailor's simulator and engine (github.com/eth-easl/sailor, MIT, read
2026-11-21: sailor/Planner/simulations/runtime_simulator.py, sailor/profiling/networking,
deepspeed/pipe_engine.py):

- `tmp_per_stage[stage][replica]` is `[[[device, devices per node, zone], ...], tp]`; a replica
  whose stage spans several kinds of node occurs in baselines only and is refused here;
- `dp[stage]` counts the replicas of a stage; `gbs` counts samples of all replicas;
- `layers_per_stage` names layers of the profile. In two runs layer 19 is written 29: all of these
  are transformer layers of one kind, so what is named is used as it stands;
- `N` counts nodes; `model` is empty on the mixed devices, so the model follows from the layers;
- a profile is [forward, backward, update] seconds; the collectives of tensor parallelism are in
  it, the update is of the whole stage;
- a network coefficient triple is a parabola in log2(MB per pair of devices) that gives GB/s of
  all pairs between two nodes (inter) or of count / 2 pairs inside one (intra).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.text_file import read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The tensor-parallel group that holds one stage of one replica."""

    device: str
    devices_per_node: int
    zone: str
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measured run.

    groups  [stages][replicas of the stage]; layers  [stages], layer numbers of the profile
    step_s, reduction_s, memory_bytes  as measured (`real`, `red_grads`, `max_mem`)
    """

    name: str
    num_nodes: int
    microbatch_size: int
    global_batch_size: int
    layers: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[Group, ...], ...]
    step_s: float
    reduction_s: float
    memory_bytes: float

    @property
    def num_replicas(self) -> int:
        return max(len(stage) for stage in self.groups)

    @property
    def num_microbatches(self) -> int:
        """Per replica."""
        return math.ceil(self.global_batch_size / (self.microbatch_size * self.num_replicas))

    @property
    def mixed(self) -> bool:
        """Whether several types of device take part."""
        return len({group.device for stage in self.groups for group in stage}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes per second over the message size: a parabola in log2 of the megabytes.

    Held at the ends of what Sailor measured, 2^16 to 2^30 bytes (networking/run_all.py).
    """

    square: float
    slope: float
    constant: float

    def bytes_per_s(self, message_bytes: float) -> float:
        """Rate of a message of so many bytes: the file's parabola in log2 of its MB, held below
        64 KiB and above 1 GiB."""
        x = math.log2(min(max(message_bytes, 2.0**16), 2.0**30) / 1e6)
        return (self.square * x * x + self.slope * x + self.constant) * 1e9


LayerTimes = tuple[float, float, float]
"""Forward, backward and update seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Layer profiles and networks.

    profiles  model -> device -> micro-batch -> tp -> layer -> times
    between   zone -> device -> count -> zone -> device -> count -> [triple, highest bytes/s]
    within    device -> count -> [triple, highest bytes/s]
    """

    profiles: Mapping[str, Any]
    between: Mapping[str, Any]
    within: Mapping[str, Any]
    folder: str

    def layer_times(
        self, model: str, device: str, microbatch_size: int, tp: int
    ) -> Mapping[int, LayerTimes]:
        """Times of each layer as profiled; raises UnknownNameError for what was not."""
        node: Any = self.profiles
        where = f"{self.folder}/layer_profiles.json"
        steps = (("model", model), ("device", device))
        counts = (("micro-batch", str(microbatch_size)), ("tensor-parallel degree", str(tp)))
        for kind, key in steps + counts:
            if key not in _table(node, where):
                raise UnknownNameError(kind, key, node, where=where)
            node = node[key]
            where += f": {key}"
        found: dict[int, LayerTimes] = {}
        for layer, times in _table(node, where).items():
            if not layer.isdecimal():
                raise DocumentError(f"{where}: a layer is named {layer!r}; give its number")
            forward, backward, update = _numbers(times, 3, f"{where}: {layer}", least=0.0)
            found[int(layer)] = (forward, backward, update)
        return found

    def model_of(self, run: Run) -> str:
        """The profiled model that has this run's layers on this run's devices."""
        count = 1 + max(layer for stage in run.layers for layer in stage)
        devices = {group.device for stage in run.groups for group in stage}
        fitting = []
        where = f"{self.folder}/layer_profiles.json"
        for model, by_device in sorted(_table(self.profiles, where).items()):
            if not devices <= set(_table(by_device, f"{where}: {model}")):
                continue
            sizes = {
                len(_table(layers, f"{where}: {model}: {device}"))
                for device in devices
                for by_tp in _table(by_device[device], f"{where}: {model}: {device}").values()
                for layers in _table(by_tp, f"{where}: {model}: {device}").values()
            }
            if sizes == {count}:
                fitting.append(model)
        if len(fitting) != 1:
            raise InputError(
                f"run {run.name}: {count} layers on {', '.join(sorted(devices))} fit "
                f"{len(fitting)} profiled models {fitting} in {self.folder}/layer_profiles.json; "
                "one is needed"
            )
        return fitting[0]

    def within_node(self, device: str, count: int) -> Curve:
        """Bandwidth of one pair of devices while `count` of a node are at it."""
        where = f"{self.folder}/intra_node_bandwidths.json"
        if device not in self.within:
            raise UnknownNameError("device", device, self.within, where=where)
        if str(count) not in self.within[device]:
            raise UnknownNameError("count", str(count), self.within[device], where=where)
        square, slope, constant = _triple(self.within[device][str(count)], f"{where}: {device}")
        pairs = count / 2
        return Curve(square=square / pairs, slope=slope / pairs, constant=constant / pairs)

    def between_nodes(self, sender: Group, receiver: Group) -> Curve:
        """Bandwidth of all pairs together, as many as the smaller group has devices.

        Where only the other direction was measured, that one.
        """
        count = str(min(sender.tp, receiver.tp))
        for a, b in ((sender, receiver), (receiver, sender)):
            node: Any = self.between
            for key in (a.zone, a.device, count, b.zone, b.device, count):
                node = node.get(key, {}) if isinstance(node, dict) else {}
            if node:
                where = f"{self.folder}/multizone_bandwidths_het.json: {a.zone}: {a.device}"
                square, slope, constant = _triple(node, where)
                return Curve(square=square, slope=slope, constant=constant)
        raise InputError(
            f"no bandwidth between {sender.device} and {receiver.device} with {count} pairs in "
            f"{self.folder}/multizone_bandwidths_het.json"
        )


def read_measurements(folder: Path) -> Measurements:
    """The profiles and networks of the folder; raises DocumentError."""
    return Measurements(
        profiles=read_json(folder / "layer_profiles.json"),
        between=read_json(folder / "multizone_bandwidths_het.json"),
        within=read_json(folder / "intra_node_bandwidths.json"),
        folder=folder.name,
    )


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises DocumentError."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path} is not JSON: {error}") from error


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"{where}: found {value!r:.60}; give a JSON object")
    return value


def _triple(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise DocumentError(f"{where}: found {value!r:.60}; give [[square, slope, constant], ...]")
    return _numbers(value[0], 3, where)


def _numbers(value: Any, count: int, where: str, *, least: float = -math.inf) -> tuple[float, ...]:
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(type(one) in (int, float) and least <= one < math.inf for one in value)
    ):
        bound = "" if least == -math.inf else f" of {least:g} or more"
        raise DocumentError(f"{where}: found {value!r:.60}; give {count} finite numbers{bound}")
    return tuple(float(one) for one in value)
