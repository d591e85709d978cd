"""`LayoutRules`: what a training framework can run, as data (profiles/data/layout_rules)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import UnknownNameError
from simulator.training_run.axis_order import AXIS_ORDERS

LAYOUT_RULES_SCHEMA = "shardwright/layout-rules@1"
OFFERS = (
    "bf16-reduce",
    "compression",
    "local-steps",
    "wide-layers",
    "optimizer-offload",
    "activation-offload",
)
_EXCLUDED = ("pipeline", "recompute")
LAYOUT_RULES_FOLDER = Path(__file__).parents[2] / "profiles" / "data" / "layout_rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """What a framework runs.

    axes       degrees that may exceed 1: of tp, pp, dp, cp, ep, vpp
    schedules  of pipelines of two ranks or more;  recompute  kinds of `TrainingRun.recompute`
    zero_stages  that it offers with every one of its axes
    partial_recompute   whether full recomputation may be of some layers of each stage only
    sequence_parallel   whether norms and residuals are split over tp
    orders     how ranks are numbered (axis_order.AXIS_ORDERS), its usual one first
    precisions  of the matmuls
    offers     of OFFERS, what it can do beside the axes; what is asked beyond is priced, and said
    activation_offload_without  `pipeline`, `recompute`: what it refuses beside activations in host
               memory
    """

    name: str
    date: str
    source: str
    axes: tuple[str, ...]
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    recompute: tuple[str, ...]
    partial_recompute: bool
    sequence_parallel: bool
    orders: tuple[str, ...] = AXIS_ORDERS[:1]
    precisions: tuple[str, ...] = ("bf16", "fp16", "fp32")
    offers: tuple[str, ...] = ()
    activation_offload_without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for offer in self.offers:
            if offer not in OFFERS:
                raise UnknownNameError("offer", offer, OFFERS, where=f"{self.name}.toml: offers")
        for what in self.activation_offload_without:
            if what not in _EXCLUDED:
                raise UnknownNameError("exclusion", what, _EXCLUDED, where=f"{self.name}.toml")


def layout_stacks() -> tuple[str, ...]:
    """The frameworks whose layouts can be searched."""
    return tuple(sorted(path.stem for path in LAYOUT_RULES_FOLDER.glob("*.toml")))


@functools.cache
def load_layout_rules(stack: str) -> LayoutRules:
    """The rules of a framework; raises UnknownNameError."""
    if stack not in layout_stacks():
        raise UnknownNameError("framework", stack, layout_stacks(), where="--stack")
    path = LAYOUT_RULES_FOLDER / f"{stack}.toml"
    return read_document(path, LayoutRules, schema=LAYOUT_RULES_SCHEMA)
