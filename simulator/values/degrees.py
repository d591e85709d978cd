"""`Degrees`: the parallel degrees of a job, and the position of its ranks.

An axis is a dimension of the mesh of ranks: `tp`, `cp`, `dp` or `pp`. `AXIS_ORDERS` lists the
orders of the axes over the devices, innermost first. `tp-cp-dp-pp` is the default of Megatron-Core
(core/parallel_state.py, `order="tp-cp-ep-dp-pp"`). `tp-cp-pp-dp` is its --use-tp-pp-dp-mapping:
the outermost axis is then dp, not pp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from profiles.errors import InputError, UnknownNameError

Axis = Literal["tp", "cp", "dp", "pp"]
AXES: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
_INNER_FIRST: dict[str, tuple[Axis, ...]] = {
    "tp-cp-dp-pp": AXES,
    "tp-cp-pp-dp": ("tp", "cp", "pp", "dp"),
}
AXIS_ORDERS = tuple(_INNER_FIRST)
_TEXT_ORDER = ("tp", "cp", "pp", "dp", "dp_replicate", "ep", "vpp")
_ALWAYS_PRINTED = ("tp", "pp", "dp")


class Coordinates(NamedTuple):
    """Position of a rank on each axis, from 0."""

    tp: int = 0
    cp: int = 0
    dp: int = 0
    pp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Degrees:
    """The parallel degrees of a plan or a run.

    pp    pipeline ranks
    dp    data-parallel replicas
    tp    ranks that split the matrices of each layer
    cp    ranks that split each sequence
    ep    ranks that share the experts of a layer. Not an axis: a subset of the tp x cp x dp ranks
          of a stage
    vpp   stages (model chunks) on each pipeline rank. Not an axis either
    dp_replicate   groups of replicas that each have all states (hybrid sharding, HSDP): ZeRO
          shards over the dp / dp_replicate neighboring replicas of a group
    axis_order   one of AXIS_ORDERS
    devices      device of each rank in the first order; (): rank r runs on device r

    Micro-batch, ZeRO stage and schedule belong to the plan or run, as they do not place ranks.
    Sorted by (pp, dp, tp, ...). Raises InputError for a degree below 1, for an ep that does not
    divide the ranks of a stage and for a dp_replicate whose groups have less than two replicas or
    are not divided by ep, UnknownNameError for an unknown axis order.
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    dp_replicate: int = 1
    axis_order: str = AXIS_ORDERS[0]
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = next((name for name in _TEXT_ORDER if getattr(self, name) < 1), "")
        if wrong:
            raise InputError(f"{wrong} must be 1 or more, got {getattr(self, wrong)}")
        if self.dp_replicate > 1:
            self._check_hybrid()
        if self.ep > 1 and self.stage_ranks % self.ep:
            fitting = [str(n) for n in range(1, self.ep) if self.stage_ranks % n == 0]
            raise InputError(
                f"ep={self.ep} does not divide the {self.stage_ranks} ranks of a stage (tp "
                f"{self.tp} x cp {self.cp} x dp {self.dp}); use {', '.join(fitting[:-1])}"
                f"{' or ' if fitting[1:] else ''}{fitting[-1]}, or change tp, cp or dp"
            )
        if self.axis_order not in AXIS_ORDERS:
            raise UnknownNameError("axis order", self.axis_order, AXIS_ORDERS)
        if len(self.devices) not in (0, self.num_devices):
            raise InputError(
                f"{self.text} has {len(self.devices)} devices for {self.num_devices} ranks"
            )

    def _check_hybrid(self) -> None:
        groups = [str(n) for n in range(1, self.dp) if self.dp % n == 0]
        if self.dp % self.dp_replicate or self.dp == self.dp_replicate:
            raise InputError(
                f"dp_replicate={self.dp_replicate} does not divide dp={self.dp} into groups of two "
                f"replicas or more, which shard states; use {' or '.join(groups) or 1}"
            )
        if self.stage_ranks // self.dp_replicate % self.ep:
            raise InputError(
                f"ep={self.ep} does not divide the {self.stage_ranks // self.dp_replicate} ranks "
                f"of each of the {self.dp_replicate} groups of dp_replicate; use a smaller ep or "
                "dp_replicate"
            )

    @property
    def shard_replicas(self) -> int:
        """Replicas that share states under ZeRO: all, or those of a group of hybrid sharding.

        >>> Degrees(dp=8, dp_replicate=2).shard_replicas
        4
        """
        return self.dp // self.dp_replicate

    @property
    def used(self) -> frozenset[str]:
        """Names of the degrees above 1."""
        return frozenset(name for name in _TEXT_ORDER if getattr(self, name) > 1)

    @property
    def stage_ranks(self) -> int:
        """Number of ranks per pipeline rank: tp x cp x dp."""
        return self.tp * self.cp * self.dp

    @property
    def num_devices(self) -> int:
        """Total number of ranks, one device each."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def num_stages(self) -> int:
        """Stages of the model over all pipeline ranks: pp x vpp."""
        return self.pp * self.vpp

    def size(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        return int(getattr(self, axis))

    def stride(self, axis: Axis) -> int:
        """Difference between the numbers of neighboring ranks on an axis.

        >>> Degrees(tp=4, pp=2, dp=8).stride("dp")
        4
        >>> Degrees(tp=4, pp=2, dp=8, axis_order="tp-cp-pp-dp").stride("dp")
        8
        """
        stride = 1
        for inner in _INNER_FIRST[self.axis_order]:
            if inner == axis:
                break
            stride *= getattr(self, inner)
        return stride

    def rank(self, *, pp: int = 0, dp: int = 0, cp: int = 0, tp: int = 0) -> int:
        """Number of the rank with these coordinates, or of its device if `devices` is set.

        >>> Degrees(tp=4, pp=2, dp=8).rank(pp=1, tp=3)
        35
        """
        number = self._number(pp=pp, dp=dp, cp=cp, tp=tp)
        return self.devices[number] if self.devices else number

    def _number(self, *, pp: int, dp: int, cp: int, tp: int) -> int:
        return cp * self.tp + tp + dp * self.stride("dp") + pp * self.stride("pp")

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a rank, the inverse of `rank`; raises InputError for a rank outside."""
        if not 0 <= rank < self.num_devices:
            raise InputError(
                f"{self.text} has ranks 0 to {self.num_devices - 1}, rank {rank} was requested"
            )
        return Coordinates(*(rank // self.stride(axis) % self.size(axis) for axis in AXES))

    def group(
        self, axis: Axis, *, pp: int = 0, dp: int = 0, cp: int = 0, tp: int = 0
    ) -> tuple[int, ...]:
        """Ranks along an axis, at the given coordinates on the other axes.

        >>> Degrees(tp=2, pp=2, dp=2).group("dp", pp=1, tp=1)
        (5, 7)
        """
        rank = self._number(pp=pp, dp=dp, cp=cp, tp=tp)
        stride, size = self.stride(axis), self.size(axis)
        first = rank - rank // stride % size * stride
        ranks = range(first, first + size * stride, stride)
        return tuple(self.devices[index] for index in ranks) if self.devices else tuple(ranks)

    @property
    def mesh_text(self) -> str:
        """The degrees that place ranks, without vpp: `tp4 cp2 pp2 dp4 ep8`."""
        return self._text(_TEXT_ORDER[:-1])

    @property
    def text(self) -> str:
        """All degrees (cp, ep and vpp only above 1), and the axis order unless it is the default.

        >>> Degrees(tp=4, cp=2, pp=2, dp=4, ep=8, vpp=3).text
        'tp4 cp2 pp2 dp4 ep8 vpp3'
        """
        order = "" if self.axis_order == AXIS_ORDERS[0] else f" {self.axis_order}"
        return self._text(_TEXT_ORDER) + order

    def _text(self, names: tuple[str, ...]) -> str:
        values = [(name, getattr(self, name)) for name in names]
        return " ".join(f"{n}{value}" for n, value in values if value > 1 or n in _ALWAYS_PRINTED)
