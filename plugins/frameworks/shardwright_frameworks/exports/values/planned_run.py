"""`PlannedRun`: the decisions of a plan file, in names that all frameworks share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.errors import InputError
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from simulator.values.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One virtual stage: its pipeline rank, the recompute kind of each of its layers in order, and
    its other parts.

    predicting   number of additional layers for multi-token prediction
    """

    rank: int
    recompute: tuple[str, ...]
    has_embedding: bool = False
    has_head: bool = False
    predicting: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The input of every exporter: a plan in names shared by all frameworks.

    plan, plan_text   the file's name, and its text (for our executor)
    model     as the user named it
    config    its Hugging Face configuration, empty for a factory
    run       the layout; its `stack` is the framework that it was planned for
    stages    virtual stages in the order of the model
    device_type   `gpu`, `cpu` or `tpu`
    only_here  why only our own executor can run it; "" for a transformer trained by AdamW
    counted_in  `tokens` or `samples`
    priced    whether the cost model of layouts has the device, so that changes can be priced
    """

    plan: str
    plan_text: str
    model: str
    config: Mapping[str, Any]
    run: TrainingRun
    stages: tuple[PlannedStage, ...]
    prediction: Prediction
    device_type: str
    only_here: str = ""
    counted_in: str = "tokens"
    priced: bool = True

    def __post_init__(self) -> None:
        held = sum(stage.num_layers for stage in self.stages)
        layers, degrees = self.run.model.num_layers, self.run.degrees
        if held != layers or len(self.stages) != degrees.num_stages:
            raise InputError(
                f"{self.plan}: {len(self.stages)} stages with {held} layers, but the run has pp "
                f"{degrees.pp} x vpp {degrees.vpp} and {layers} layers"
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes filled by the used devices."""
        return -(-self.run.degrees.num_devices // self.devices_per_node)

    @property
    def devices_per_node(self) -> int:
        """Used devices per node."""
        return min(self.run.node_devices, self.run.degrees.num_devices)

    @property
    def is_even(self) -> bool:
        """Whether all virtual stages have equally many layers, and none predicts further tokens."""
        counts = {stage.num_layers for stage in self.stages}
        return len(counts) == 1 and not any(stage.predicting for stage in self.stages)

    @property
    def layer_ranges(self) -> tuple[range, ...]:
        """The layers of each virtual stage, by their number."""
        ends = [0]
        for stage in self.stages:
            ends.append(ends[-1] + stage.num_layers)
        return tuple(range(a, b) for a, b in itertools.pairwise(ends))


def stages_of_run(run: TrainingRun) -> tuple[PlannedStage, ...]:
    """The stages of a run, as in its prediction."""
    found = []
    for share in stage_split(run)[: run.degrees.num_stages]:
        layers = share.num_layers - share.predicting_layers
        again = run.recompute_layers if run.recompute == "full" else 0
        kinds = tuple(
            run.recompute if not again or layer < again else "none" for layer in range(layers)
        )
        found.append(
            PlannedStage(
                rank=share.rank,
                recompute=kinds,
                has_embedding=share.has_embedding,
                has_head=share.has_head,
                predicting=share.predicting_layers,
            )
        )
    return tuple(found)
