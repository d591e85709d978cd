"""Report of `fit`: parts of a model, and the devices on which its training fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.model.graph import Block
from profiles.model.tracing.traced import TracedModel
from profiles.units import format_bytes, format_count, format_flop
from shardwright.reports.terminal import table
from simulator.memory.data_group import Sharing
from simulator.memory.held import Elements, executor_static_bytes
from simulator.training_run.framework.framework import load_stack
from simulator.values.degrees import Degrees
from simulator.values.workload import Workload

_DEVICES = tuple(2**k for k in range(13))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """A kind of block: its count; per block parameters, and flop and kept bytes per micro-batch."""

    label: str
    count: int
    first_entry: str
    parameters: int
    forward_flop: int
    backward_flop: int
    saved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """Whether training fits on one device, with and without recomputation of all blocks, and the
    number of devices that ZeRO 3 needs (0 if thousands are not enough)."""

    device: str
    memory_bytes: float
    fits_one: bool
    fits_one_recomputed: bool
    zero3_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer of `fit`; bytes are for one device with the whole model."""

    name: str
    micro_batch: int
    sequence_length: int
    parameters: int
    forward_flop: int
    backward_flop: int
    static_bytes: float
    activation_bytes: float
    recomputed_bytes: float
    kinds: tuple[KindRow, ...]
    devices: tuple[DeviceRow, ...]
    why_not_cuttable: str
    why_not_tensor_parallel: str
    expected_shapes: bool


def fit_model(traced: TracedModel, *, micro_batch: int, precision: str) -> Fit:
    """Sizes of the traced model, and how its training with AdamW fits the catalog's devices."""
    graph = traced.at(micro_batch, 1)
    stack = load_stack()
    counts: dict[int, list[str]] = {}
    for ref in graph.chain:
        counts.setdefault(ref.kind, []).append(ref.entry)
    kinds = tuple(
        KindRow(
            label=graph.kinds[kind].label,
            count=len(entries),
            first_entry=entries[0],
            parameters=graph.kinds[kind].full_parameter_count,
            forward_flop=graph.kinds[kind].forward_flop,
            backward_flop=graph.kinds[kind].backward_flop,
            saved_bytes=graph.kinds[kind].saved_bytes,
        )
        for kind, entries in counts.items()
    )
    blocks = graph.blocks
    inputs = sum(spec.memory_bytes for block in blocks for spec in block.outputs)
    transient = max(max(b.forward_peak_bytes, b.backward_peak_bytes) for b in blocks)
    kept = sum(b.saved_bytes for b in blocks) + inputs
    again = inputs + max(b.saved_bytes for b in blocks)
    n = graph.full_parameter_count
    trained = float(sum(_trained_count(block) for block in blocks))
    held = Elements(total=float(n), trained=trained, gradients=trained)
    # Under ZeRO 3 two blocks are gathered, and the gradients of two are summed.
    sizes = stack.bytes_of(precision)
    moved = 2 * max(
        block.full_parameter_count * sizes.compute_bytes
        + _trained_count(block) * sizes.gradient_bytes
        for block in blocks
    )

    def static(zero: int, dp: int) -> float:
        sharing = Sharing(
            degrees=Degrees(dp=dp),
            zero_stage=zero,
            pipelined=False,
            num_microbatches=1,
            workload=Workload(global_batch=dp, sequence_length=1, precision=precision),
            stack=stack,
        )
        return executor_static_bytes(held, sharing).total + moved * (zero == 3)

    rows = []
    for name in device_names():
        device = get_device(name)
        room = device.usable_bytes
        enough = (
            count
            for count in _DEVICES
            if static(3 if count > 1 else 0, count) + again + transient <= room
        )
        rows.append(
            DeviceRow(
                device=name,
                memory_bytes=device.memory_bytes.value,
                fits_one=static(0, 1) + kept + transient <= room,
                fits_one_recomputed=static(0, 1) + again + transient <= room,
                zero3_devices=next(enough, 0),
            )
        )
    return Fit(
        name=traced.name,
        micro_batch=micro_batch,
        sequence_length=traced.sequence_length,
        parameters=n,
        forward_flop=graph.forward_flop,
        backward_flop=graph.backward_flop,
        static_bytes=static(0, 1),
        activation_bytes=float(kept + transient),
        recomputed_bytes=float(again + transient),
        kinds=kinds,
        devices=tuple(rows),
        why_not_cuttable=graph.why_not_cuttable,
        why_not_tensor_parallel=graph.why_not_tensor_parallel,
        expected_shapes=any(block.expected_shapes for block in blocks),
    )


def _trained_count(block: Block) -> int:
    """Number of trained parameters of a block; tied ones count once."""
    own = (p for p in block.parameters if p.trainable and not p.tied_to)
    return sum(math.prod(p.full_shape) for p in own)


def fit_report(found: Fit) -> RenderableType:
    """The answer as text."""
    blocks = table(">blocks", "kind", "from", ">parameters", ">forward", ">backward", ">kept")
    for row in found.kinds:
        blocks.add_row(
            f"{row.count} x",
            row.label,
            row.first_entry or "(start)",
            format_count(row.parameters),
            format_flop(row.forward_flop),
            format_flop(row.backward_flop),
            format_bytes(row.saved_bytes),
        )
    devices = table("device", ">memory", "one device", ">ZeRO-3, recompute full")
    for d in found.devices:
        one = "fits" if d.fits_one else "fits with recompute" if d.fits_one_recomputed else "no"
        many = f"{d.zero3_devices} devices" if d.zero3_devices else "does not fit"
        devices.add_row(d.device, format_bytes(d.memory_bytes), one, many)
    remarks = []
    if found.expected_shapes:
        remarks.append("Routing that depends on the data was traced by its expected shapes.")
    if found.why_not_cuttable:
        remarks.append(f"No pipeline: {found.why_not_cuttable}.")
    if found.why_not_tensor_parallel:
        remarks.append(f"No tensor parallelism: {found.why_not_tensor_parallel}.")
    return Group(
        Text.assemble(
            (found.name, "bold"),
            f"  {format_count(found.parameters)} parameters; a micro-batch of "
            f"{found.micro_batch} x {found.sequence_length}: "
            f"{format_flop(found.forward_flop)} forward, "
            f"{format_flop(found.backward_flop)} backward",
        ),
        Text(
            f"Weights, gradients and AdamW {format_bytes(found.static_bytes)}; activations "
            f"{format_bytes(found.activation_bytes)} ({format_bytes(found.recomputed_bytes)} with "
            "every block recomputed)"
        ),
        Text(""),
        blocks,
        Text(""),
        devices,
        *(Text(remark) for remark in remarks),
    )
