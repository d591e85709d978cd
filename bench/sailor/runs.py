"""Sailor's runs.json as values: each entry is checked and named where it is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench.sailor.files import Group, Run, read_json
from profiles.errors import DocumentError, InputError


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs of a file like runs.json, in its order.

    Raises DocumentError that names the entry where one is missing or no such thing as it should
    be, InputError where a run is of a kind that is not predicted.
    """
    rows = _Entry(read_json(path), path.name).items()
    if not rows:
        raise DocumentError(f"{path}: holds no run; give a list of at least one")
    return tuple(_run(row) for row in rows)


class _Entry:
    """A value of a document that knows its place."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def wrong(self, wanted: str) -> DocumentError:
        found = "nothing" if self.value is None else f"{self.value!r:.60}"
        return DocumentError(f"{self.where}: found {found}; give {wanted}")

    def items(self, count: int | None = None) -> list[_Entry]:
        """The entries of a list, of `count` where that is given."""
        if not isinstance(self.value, list) or count not in (None, len(self.value)):
            raise self.wrong("a list" if count is None else f"a list of {count} entries")
        return [_Entry(one, f"{self.where}[{at}]") for at, one in enumerate(self.value)]

    def key(self, name: str) -> _Entry:
        """The entry `name` of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("a JSON object")
        if name not in self.value:
            raise DocumentError(
                f"{self.where} has no key {name!r}; it has {', '.join(map(str, self.value))}"
            )
        return _Entry(self.value[name], f"{self.where}.{name}")

    def whole(self, least: int) -> int:
        """A whole number of `least` or more, also where it is written 2.0 or \"2\"."""
        try:
            number = float(self.value) if type(self.value) in (int, float, str) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not least <= number < 2**53 or number != int(number):
            raise self.wrong(f"a whole number of {least} or more")
        return int(number)

    def seconds(self) -> float:
        """A number above 0."""
        if type(self.value) not in (int, float) or not 0 < self.value < math.inf:
            raise self.wrong("a number above 0")
        return float(self.value)

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value


def _run(row: _Entry) -> Run:
    pipelines = row.key("pipeline_list").items()
    if len(pipelines) != 1:
        raise InputError(
            f"{row.where}: {len(pipelines)} pipelines; runs of one pipeline with replicas per "
            "stage are predicted"
        )
    pipeline = pipelines[0]
    groups = tuple(
        tuple(_group(entry) for entry in stage.items())
        for stage in pipeline.key("tmp_per_stage").items()
    )
    layers = tuple(
        tuple(layer.whole(0) for layer in stage.items())
        for stage in pipeline.key("layers_per_stage").items()
    )
    counts = [len(stage) for stage in groups]
    stages = pipeline.key("num_stages").whole(1)
    replicas = [count.whole(1) for count in pipeline.key("dp").items()]
    if counts != replicas or not stages == len(layers) == len(groups):
        raise InputError(
            f"{row.where}: num_stages {stages} and dp {replicas}, but tmp_per_stage lists {counts} "
            f"groups and layers_per_stage {len(layers)} stages"
        )
    if not all(layers):
        raise InputError(
            f"{row.where}: stage {layers.index(())} has no layer; give each at least one"
        )
    return Run(
        name=str(row.value.get("id", row.where)),
        num_nodes=row.key("N").whole(1),
        microbatch_size=row.key("mbs").whole(1),
        global_batch_size=row.key("gbs").whole(1),
        layers=layers,
        groups=groups,
        step_s=row.key("real").seconds(),
        reduction_s=_if_known(row, "red_grads"),
        memory_bytes=_if_known(row, "max_mem"),
    )


def _if_known(row: _Entry, name: str) -> float:
    """A measured number, nan where the run does not have it."""
    return row.key(name).seconds() if row.value.get(name) is not None else math.nan


def _group(entry: _Entry) -> Group:
    nodes, tp = entry.items(2)
    kinds = nodes.items()
    if len(kinds) != 1:
        raise InputError(
            f"{entry.where}: a tensor-parallel group over {len(kinds)} nodes; groups within one "
            "node are profiled"
        )
    device, per_node, zone = kinds[0].items(3)
    return Group(
        device=device.text(),
        devices_per_node=per_node.whole(1),
        zone=zone.text(),
        tp=tp.whole(1),
    )
