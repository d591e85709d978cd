"""The space of a search: the values that each axis may take, and the cells that are legal.

An axis that is None is free; one value pins it, several restrict it. Legal cells use every device
of the cluster. A pin is a constraint: where pins contradict each other or the cluster, the error
names them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.cell import Cell
from planner.divisors import divisors
from planner.pinned_axes import check_axes, pins_of
from profiles.errors import InputError
from simulator.schedules.schedule import schedule_kind
from simulator.values.degrees import Degrees
from simulator.values.plan import Recompute
from simulator.values.runnable import free_schedules, runnable_schedules, why_not_runnable

MAX_FREE_VPP = 8  # a free vpp is tried up to this; more stages per rank must be pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Allowed values per axis; None where free.

    zero       ZeRO stages 0 to 3
    schedule   names of runnable_schedules(), `none` for one pipeline rank; None means
               free_schedules()
    recompute  kinds that a block may use; None means all, mixed block by block

    Raises InputError for empty axes, counts below 1 and unknown names.
    """

    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    schedule: tuple[str, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None

    def __post_init__(self) -> None:
        check_axes(self, {"schedule": runnable_schedules(), "recompute": tuple(Recompute)})

    def allows(self, axis: str, value: int | str) -> bool:
        """True where `value` is allowed on `axis`."""
        allowed = getattr(self, axis)
        if axis == "schedule" and allowed is None:
            return value in free_schedules()
        return allowed is None or value in allowed

    @property
    def strategies(self) -> tuple[Recompute, ...]:
        """The recompute kinds that a block may use, cheapest to run first."""
        return tuple(kind for kind in Recompute if self.allows("recompute", kind))

    def pins(self) -> tuple[str, ...]:
        """What is not free, as flags: (`--tp 4`, `--zero 0,1`)."""
        return pins_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the space is laid over.

    node_devices     devices of the innermost level of the cluster: a free tp stays within it
    tp_degrees       degrees that the model has a tensor-parallel trace for
    why_not_cuttable, why_not_tensor_parallel   the model's own reasons, or ""
    why_one_replica  why dp is 1, or "";  expected_shapes  of which blocks shapes depend on values
    assumed_values   in which blocks an assumed truth value decides what runs
    """

    num_devices: int
    node_devices: int
    num_blocks: int
    tp_degrees: tuple[int, ...]
    global_batch: int
    precision: str = "bf16"
    why_not_cuttable: str = ""
    why_not_tensor_parallel: str = ""
    why_one_replica: str = ""
    expected_shapes: tuple[str, ...] = ()
    assumed_values: tuple[str, ...] = ()


def parse_axis(text: str, flag: str) -> tuple[int, ...]:
    """The values of `4` or `1,2,4`; raises InputError naming the flag.

    >>> parse_axis("1,2", "--tp")
    (1, 2)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{flag} {text!r} is not a list of whole numbers; write {flag} 4 to pin it or "
            f"{flag} 1,2,4 to restrict it"
        ) from None


def legal_cells(space: Space, ground: Ground) -> tuple[Cell, ...]:
    """Every legal cell in a fixed order; raises InputError where the pins leave none."""
    cells = tuple(sorted(_cells(space, ground)))
    if not cells:
        raise InputError(_why_none(space, ground))
    return cells


def runnable(cell: Cell, precision: str) -> str:
    """Why a cell is not legal, or "": there is no such schedule, or the executor cannot run it."""
    return why_not_runnable(
        cell.degrees,
        zero_stage=cell.zero_stage,
        schedule=cell.schedule,
        precision=precision,
        num_microbatches=cell.num_microbatches,
    )


def _cells(space: Space, ground: Ground) -> Iterator[Cell]:
    for pp, dp, tp in _meshes(space, ground):
        for micro_batch in divisors(ground.global_batch // dp):
            if not space.allows("micro_batch", micro_batch):
                continue
            for schedule, vpp in _schedules(space, ground, pp):
                for zero in _zero_stages(space, dp):
                    cell = Cell(
                        degrees=Degrees(pp=pp, dp=dp, tp=tp, vpp=vpp),
                        zero_stage=zero,
                        micro_batch=micro_batch,
                        schedule=schedule,
                        global_batch=ground.global_batch,
                    )
                    if not runnable(cell, ground.precision):
                        yield cell


def _meshes(space: Space, ground: Ground) -> Iterator[tuple[int, int, int]]:
    for tp in _tensor_degrees(space, ground):
        if ground.num_devices % tp:
            continue
        for pp in divisors(ground.num_devices // tp):
            if not space.allows("pp", pp) or (pp > 1 and _pipeline_problem(pp, ground)):
                continue
            dp = ground.num_devices // (tp * pp)
            if space.allows("dp", dp) and ground.global_batch % dp == 0:
                yield pp, dp, tp


def _tensor_degrees(space: Space, ground: Ground) -> list[int]:
    degrees = [tp for tp in ground.tp_degrees if space.allows("tp", tp)]
    if space.tp is None:
        degrees = [tp for tp in degrees if ground.node_devices % tp == 0]
    return degrees


def _schedules(space: Space, ground: Ground, pp: int) -> Iterator[tuple[str, int]]:
    """(schedule, stages per rank)."""
    if pp == 1:
        if space.allows("schedule", "none") and space.allows("vpp", 1):
            yield "none", 1
        return
    for name in runnable_schedules():
        if name == "none" or not space.allows("schedule", name):
            continue
        wanted = schedule_kind(name).stages_per_rank
        most = ground.num_blocks // pp
        if wanted == 0 and space.vpp is None:
            most = min(most, MAX_FREE_VPP)
        for vpp in range(2, most + 1) if wanted == 0 else (wanted,):
            if space.allows("vpp", vpp) and vpp <= most:
                yield name, vpp


def _zero_stages(space: Space, dp: int) -> tuple[int, ...]:
    """With one replica there is nothing to shard."""
    return tuple(zero for zero in range(4) if space.allows("zero", zero) and (zero == 0 or dp > 1))


def _pipeline_problem(pp: int, ground: Ground) -> str:
    if ground.why_not_cuttable:
        return f"the model cannot be cut into stages: {ground.why_not_cuttable}"
    if pp > ground.num_blocks:
        return f"the model has {ground.num_blocks} blocks"
    return ""


def _why_none(space: Space, ground: Ground) -> str:
    """The contradiction in one sentence: the first rule that, with the pins, leaves nothing."""
    pins = " with ".join(space.pins()) or "no pin"
    devices, batch = ground.num_devices, ground.global_batch
    for tp in space.tp or ():
        if tp not in ground.tp_degrees:
            reason = ground.why_not_tensor_parallel or (
                "its degrees are " + ", ".join(map(str, ground.tp_degrees))
            )
            if len(space.tp or ()) == 1:
                return f"--tp {tp} does not suit the model: {reason}"
    for pp in space.pp or ():
        problem = _pipeline_problem(pp, ground) if pp > 1 else ""
        if problem and len(space.pp or ()) == 1:
            return f"--pp {pp} does not suit the model: {problem}"
    tensor = _tensor_degrees(space, ground)
    products = {
        (pp, devices // (tp * pp), tp)
        for tp in tensor
        if devices % tp == 0
        for pp in divisors(devices // tp)
        if space.allows("pp", pp) and space.allows("dp", devices // (tp * pp))
    }
    if not products:
        return (
            f"{pins} cannot use all {devices} devices: pp x dp x tp must be {devices} "
            f"(tp can be {', '.join(map(str, tensor)) or 'nothing'}). Free one of these flags or "
            f"change --on."
        )
    replicas = sorted({dp for _, dp, _ in products})
    if not any(batch % dp == 0 for dp in replicas):
        least = replicas[0]
        return (
            f"--global-batch {batch} cannot be shared by dp replicas ({pins}): dp can be "
            f"{', '.join(map(str, replicas))} and must divide it. Use a multiple of {least}, for "
            f"example --global-batch {(batch // least + 1) * least}."
        )
    meshes = list(_meshes(space, ground))
    if not meshes:
        return (
            f"{pins}: the model has {ground.num_blocks} blocks"
            + (f" and cannot be cut: {ground.why_not_cuttable}" if ground.why_not_cuttable else "")
            + f"; no mesh of {devices} devices has so few stages. Free --pp, --dp or --tp."
        )
    if space.micro_batch is not None and not any(
        (batch // dp) % size == 0 for _, dp, _ in meshes for size in space.micro_batch
    ):
        shares = sorted({batch // dp for _, dp, _ in meshes})
        return (
            f"--micro-batch {','.join(map(str, space.micro_batch))} does not divide the share of a "
            f"replica: --global-batch {batch} leaves {', '.join(map(str, shares))} sequences per "
            f"replica ({pins})."
        )
    refused = why_not_runnable(Degrees(), zero_stage=0, schedule="none", precision=ground.precision)
    if refused:
        return f"--precision {ground.precision} cannot be run: {refused}"
    kinds = map(schedule_kind, runnable_schedules())
    needs = "; ".join(f"{kind.name} needs {kind.needs}" for kind in kinds if kind.needs)
    return (
        f"no plan obeys {pins}: schedules need pp of 2 or more and pp x vpp up to the model's "
        f"{ground.num_blocks} blocks; {needs}; other schedules need vpp 1; zero 1 to 3 need dp of "
        f"2 or more. Free --schedule, --vpp, --zero, --pp or --micro-batch."
    )
