"""The rule of the space that a smallest conflict of pins breaks, in words.

Pins are in a smallest conflict only if the rules that they have a part in leave nothing, so the
axes of a conflict decide which rules are possible; the predicates are those of the enumeration
(planner/space.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.axes import NO_PIPELINE, Axes
from planner.space import LayoutContext, axis_values, equal_chunks, suits_devices
from simulator.schedules.schedule import WHOLE_EXPERTS, ScheduleKind, schedule_kind
from simulator.training_run.framework.framework import (
    FrameworkRules,
    load_framework,
    offered_frameworks,
)

_DEGREES = ("tp", "cp", "pp", "dp")
# Frameworks that are named for an axis.
_NAMED = 4


def broken_rule(conflict: Axes, space: LayoutContext) -> str:
    """The broken rule; `conflict` has the pins of a smallest conflict alone."""
    pairing = [name for name in conflict.schedule or () if schedule_kind(name).for_experts]
    if pairing and (conflict.recompute or conflict.ep or space.ep_degrees[-1] == 1):
        return (
            f"{pairing[0]} hides all-to-alls of experts: it needs ep of 2 or more, and no "
            f"recomputation of kind {', '.join(WHOLE_EXPERTS)}"
        )
    for pins, words in _OF_ONE_AXIS:
        for axis in pins:
            if getattr(conflict, axis) is not None and (broken := words(axis, conflict, space)):
                return broken
    if conflict.dp_replicate:
        return (
            "hybrid sharding needs ZeRO 1, 2 or 3, and a dp that dp-replicate divides into groups "
            "of two replicas or more, of which ep divides the ranks"
        )
    if conflict.zero:
        return _broken_zero(conflict, space.rules)
    if conflict.ep:
        return f"ep must divide the tp x cp x dp ranks of a stage, and {_device_rule(space)}"
    if conflict.vpp or conflict.schedule:
        return _broken_pipeline(conflict, space)
    if space.layout_ranks and not conflict.pins():
        stages, least = space.layout_ranks[-1], space.layout_ranks[0]
        return f"the {stages} stages of --pipeline-layout need {least} devices or more"
    batch = space.global_batch
    shares = itertools.product(conflict.dp or (1,), conflict.micro_batch or (1,))
    if not any(batch % (dp * size) == 0 for dp, size in shares):
        return f"dp x micro-batch must divide --global-batch {batch}"
    product = _degrees_product(conflict, 1)
    if not _suits(product, space):
        return _device_rule(space, min(product))
    return f"dp must divide --global-batch {batch}, and {_device_rule(space)}"


def _device_rule(space: LayoutContext, product: int = 0) -> str:
    count = f"the {space.num_devices} devices of --on"
    if not space.may_idle:
        return f"tp x cp x pp x dp must use {count}, all of them"
    return f"tp x cp x pp x dp{f', here {product},' if product else ''} may use {count} at most"


def _degrees_product(conflict: Axes, least_pp: int) -> list[int]:
    """Products of the pinned degrees; a free pp counts as `least_pp`."""
    pins = [getattr(conflict, axis) or ((least_pp,) if axis == "pp" else (1,)) for axis in _DEGREES]
    return [math.prod(each) for each in itertools.product(*pins)]


def _suits(products: Sequence[int], space: LayoutContext) -> bool:
    """Whether free degrees can make up for one of the products of the pinned ones."""
    used = np.asarray(products)
    if not space.may_idle:
        used = np.where(space.num_devices % used == 0, space.num_devices, used)
    return bool(suits_devices(space, used).any())


def _missing_axis(axis: str, conflict: Axes, space: LayoutContext) -> str:
    """That the framework has no such degree."""
    rules = space.rules
    if axis in rules.axes or min(getattr(conflict, axis)) == 1:
        return ""
    others = _frameworks(lambda other: axis in other.axes)
    return (
        f"{rules.name} has no such axis ({rules.source.partition(':')[0]}), only "
        f"{', '.join(rules.axes)}{others}"
    )


def _frameworks(able: Callable[[FrameworkRules], bool]) -> str:
    """`; these have it: torch, torchtitan (--stack)`"""
    names = [name for name in offered_frameworks() if able(load_framework(name).rules)]
    return f"; these have it: {', '.join(names[:_NAMED])} (--stack)" if names else ""


def _wrong_kind(axis: str, conflict: Axes, space: LayoutContext) -> str:
    pins = getattr(conflict, axis)
    others = _frameworks(lambda other: not set(pins).isdisjoint(other.recompute))
    return f"{space.rules.name} has no such kind{others}"


def _wrong_stage(axis: str, conflict: Axes, space: LayoutContext) -> str:
    pins, offered = set(getattr(conflict, axis)), space.rules.zero_stages_at(1)
    others = _frameworks(lambda other: not pins.isdisjoint(other.zero_stages_at(1)))
    stages = ", ".join(map(str, offered))
    return "" if pins & set(offered) else f"{space.rules.name} has ZeRO {stages}{others}"


def _wrong_degree(axis: str, conflict: Axes, space: LayoutContext) -> str:
    """The rule of one degree, or of the micro-batch, whatever the others are."""
    if set(getattr(conflict, axis)) & set(axis_values(space, axis)):
        return ""
    match axis:
        case "tp":
            degrees = ", ".join(map(str, space.tp_degrees))
            return space.why_not_tensor_parallel or f"tp is one of {degrees}"
        case "cp":
            return space.why_not_context_parallel or "cp is 1"
        case "ep":
            experts = space.ep_degrees[-1]
            rule = f"ep must divide the model's {experts} experts"
            return rule if experts > 1 else "the model has no experts"
        case "pp" if space.layout_ranks:
            return (
                f"pp must divide the {space.layout_ranks[-1]} stages of --pipeline-layout, and a "
                "stage with m must be the last one of its rank"
            )
        case "pp" if space.why_not_cuttable:
            return f"the model cannot be cut into stages: {space.why_not_cuttable}"
        case "pp":
            return f"every stage has one of the model's {_layers(space)} or more"
        case _:
            return f"{axis.replace('_', '-')} must divide --global-batch {space.global_batch}"


_OF_ONE_AXIS = (
    (("tp", "cp", "ep", "pp", "dp", "vpp"), _missing_axis),
    (("recompute",), _wrong_kind),
    (("zero",), _wrong_stage),
    (("tp", "cp", "ep", "pp", "dp", "micro_batch"), _wrong_degree),
)


def _layers(space: LayoutContext) -> str:
    return f"{space.num_layers} {'blocks' if space.blocks else 'layers'}"


def _broken_zero(conflict: Axes, rules: FrameworkRules) -> str:
    """The ZeRO stage suits the framework, but not its pipelines, or not a single replica."""
    stages = rules.zero_stages_at(2)
    pipeline = conflict.pp or conflict.vpp or conflict.schedule
    if pipeline and set(conflict.zero or ()).isdisjoint(stages):
        return f"with pp of 2 or more {rules.name} has ZeRO {', '.join(map(str, stages))}"
    return "without replicas (dp x cp of 2 or more) there is nothing to shard"


def _broken_pipeline(conflict: Axes, space: LayoutContext) -> str:
    """The rule of schedules and chunks."""
    named = [name for name in conflict.schedule or space.rules.schedules if name != NO_PIPELINE]
    if not named:
        return f"schedule {NO_PIPELINE} is for one stage, pp 1 and vpp 1"
    kinds = [
        kind
        for kind in map(schedule_kind, named)
        if conflict.vpp is None or any(map(kind.takes_stages, conflict.vpp))
    ]
    if not kinds:
        return "; ".join(f"{name} has vpp {_chunks_of(schedule_kind(name))}" for name in named)
    if conflict.pp == (1,):
        vpp = f"vpp {_chunks_of(kinds[0])}"
        return f"{'a schedule' if conflict.schedule else vpp} needs a pipeline, pp of 2 or more"
    cuts = [(kind, pp, vpp) for kind in kinds for pp, vpp in _cuts(kind, conflict, space)]
    legal = [pp for kind, pp, vpp in cuts if _is_cut(kind, pp * vpp, space)]
    if not legal:
        return _chunk_rule(kinds, {pp * vpp for _, pp, vpp in cuts}, space)
    product = _degrees_product(conflict, min(legal))
    if not _suits(product, space):
        return f"pp is {min(legal)} or more with it, and {_device_rule(space, min(product))}"
    needs = "; ".join(f"{kind.name} needs {kind.needs}" for kind in kinds if kind.needs)
    shares = [dp * size for dp in conflict.dp or () for size in conflict.micro_batch or ()]
    counts = sorted({space.global_batch // share for share in shares})
    return f"{needs}; there are {' or '.join(map(str, counts))} per replica" if counts else needs


def _chunks_of(kind: ScheduleKind) -> str:
    return str(kind.stages_per_rank or "of 2 or more")


def _cuts(kind: ScheduleKind, conflict: Axes, space: LayoutContext) -> list[tuple[int, int]]:
    """(pp, vpp) of the pins, legal or not."""
    ranks = [pp for pp in conflict.pp or axis_values(space, "pp") if pp > 1]
    if kind.stages_per_rank:
        return [(pp, kind.stages_per_rank) for pp in ranks]
    free = range(2, space.num_layers + 1)
    return [(pp, vpp) for pp in ranks for vpp in conflict.vpp or free]


def _is_equal(kind: ScheduleKind, space: LayoutContext) -> bool:
    """Whether the schedule needs equal chunks."""
    return kind.stages_per_rank == 0 and not space.blocks


def _is_cut(kind: ScheduleKind, chunks: int, space: LayoutContext) -> bool:
    if _is_equal(kind, space) or space.layout_ranks:
        return equal_chunks(space, chunks)
    return chunks <= space.num_layers


def _chunk_rule(kinds: Sequence[ScheduleKind], chunks: set[int], space: LayoutContext) -> str:
    count = f", here {min(chunks)}," if len(chunks) == 1 else ""
    if space.layout_ranks:
        return f"pp x vpp{count} must be the {space.layout_ranks[-1]} stages of --pipeline-layout"
    if all(_is_equal(kind, space) for kind in kinds):
        units = space.num_layers + (space.predictor_units or 2)
        counted = "the embedding and the head as one each"
        if space.predictor_units:
            counted = "the layers and logits that predict further tokens and the loss"
        rule = f"pp x vpp{count} must cut {_layers(space)} into equal chunks"
        return f"{rule}, or {units} with {counted}"
    return f"every chunk of pp x vpp{count} has one of the model's {_layers(space)} or more"
