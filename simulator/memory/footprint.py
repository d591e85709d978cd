"""`footprint`: the memory of a layout (a `TrainingRun`), part by part.

A rank's peak is the sum of its lasting memory, the activations of the micro-batches in flight, and
the tensors of the step's fullest moment. Three numbers follow from it: bytes allocated by the
framework, bytes reserved by its allocator, and bytes that the device must have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.host_offload import host_bytes
from simulator.memory.run_tensors import (
    KeptLayers,
    RankFacts,
    kept_layers,
    on_device_bytes,
    run_tensors,
)
from simulator.memory.static import run_static_bytes
from simulator.schedules.in_flight import most_in_flight
from simulator.training_run.framework.framework import FrameworkMemory, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.adapter_work import widened_bytes
from simulator.training_run.work.stage_share import StageShare, rank_conditions, stage_split
from simulator.values.prediction import RankMemory

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakDetails:
    """The parts of a pipeline rank's peak.

    here                 the rank's properties on which tensor sizes depend
    kept                 layers with their kept activations, per micro-batch
    in_flight            number of micro-batches kept at once
    moment               name of the fullest moment
    all_activations_bytes, all_gradients_bytes   the most of a step; at the peak there may be fewer
    working_set_bytes    temporary tensors while one layer computes: the moment's and the layer's
    lingering_bytes      freed blocks that wait for a collective's stream, as far as the device has
                         room
    """

    here: RankFacts
    kept: tuple[KeptLayers, ...]
    in_flight: float
    moment: str
    all_activations_bytes: float
    all_gradients_bytes: float
    working_set_bytes: float
    lingering_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The peaks of a run, in bytes.

    ranks, details   one per pipeline rank, in order
    allocated_bytes  of the fullest rank, as torch.cuda.max_memory_allocated counts
    reserved_bytes   as torch.cuda.max_memory_reserved counts, if there is room
    needed_bytes     device memory below which the run fails
    shown_bytes      reported by the framework for the rank `shown_rank`; another kind of peak if
                     the run requests it
    refused          why the framework would not run this layout, "" if it would
    """

    ranks: tuple[RankMemory, ...]
    details: tuple[PeakDetails, ...]
    allocated_bytes: float
    reserved_bytes: float
    needed_bytes: float
    shown_bytes: float
    shown_rank: int
    refused: str = ""

    @property
    def fullest(self) -> RankMemory:
        """The rank that needs the most."""
        return max(self.ranks, key=lambda rank: rank.limiting_bytes)

    @property
    def fits(self) -> bool:
        """Whether the framework runs the layout and its fullest rank fits in the usable memory."""
        return not self.refused and self.fullest.fits

    @property
    def fullest_details(self) -> PeakDetails:
        """The parts of the fullest rank's peak."""
        return self.details[self.fullest.rank]


def footprint(run: TrainingRun) -> Footprint:
    """The memory that a device of each pipeline rank needs.

    Raises InputError if the framework's file does not describe the run's ZeRO stage.
    """
    counter = _Counter(run)
    memory, device = counter.memory, counter.device
    counted = [counter.rank(rank) for rank in range(run.degrees.pp)]
    ranks = tuple(rank for rank, _ in counted)
    needed = max(rank.limiting_bytes for rank in ranks)
    # Memory used outside of torch leaves less room for cached blocks.
    held = max(rank.held_bytes for rank in ranks) + memory.device_extra_gib.value * GIB
    on_device = min(held, max(device.usable_bytes, needed)) + device.reserved_bytes.value
    kind = run.memory_kind or memory.shows
    # The capacity is that of the fullest rank's device, whichever rank reports.
    printing = ranks[:1] if memory.peak_rank == "first" and kind != "device" else ranks
    if kind == "allocated":
        shown = max(printing, key=lambda rank: rank.peak_bytes)
        shown_bytes = shown.peak_bytes
    else:
        shown = max(printing, key=lambda rank: (rank.held_bytes, rank.reserved_bytes))
        shown_bytes = on_device if kind == "device" else shown.held_bytes
    return Footprint(
        ranks=ranks,
        details=tuple(details for _, details in counted),
        allocated_bytes=max(rank.peak_bytes for rank in ranks),
        reserved_bytes=max(rank.reserved_bytes or 0.0 for rank in ranks),
        needed_bytes=needed,
        shown_bytes=shown_bytes,
        shown_rank=shown.rank,
        refused=_refusal(run, memory, counter.shares),
    )


def rank_footprint(run: TrainingRun, rank: int) -> tuple[RankMemory, PeakDetails]:
    """The footprint of one pipeline rank alone, and the parts of its peak."""
    return _Counter(run).rank(rank)


class _Peak(NamedTuple):
    """A candidate for the peak: a moment, the micro-batches in flight, bytes of gradients and of
    the moment's temporary tensors."""

    moment: str
    in_flight: float
    gradients: float
    extra: float


class _Counter:
    """Counts the memory of the ranks of one run."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.framework = run, load_framework(run.stack)
        self.tensors = run_tensors(run, self.framework)
        self.memory = self.tensors.memory
        self.shares = stage_split(run)
        degrees = run.degrees
        self.in_flight = most_in_flight(run.schedule, degrees.pp, run.num_microbatches, degrees.vpp)
        self.device = get_device(run.device)

    def rank(self, rank: int) -> tuple[RankMemory, PeakDetails]:
        """The peak of a pipeline rank."""
        run, memory, tensors = self.run, self.memory, self.tensors
        mine = tuple(share for share in self.shares if share.rank == rank)
        static, parameters = run_static_bytes(run, self.framework, memory, mine)
        here = RankFacts(
            num_parameters=parameters, conditions=tuple(sorted(rank_conditions(rank, mine)))
        )
        always = tensors.total(memory.always, here)
        layer, kept = tensors.layer(run.recompute), kept_layers(run, tensors, mine)
        # The virtual stages of a rank are alike: whole stages of a micro-batch are in flight.
        in_flight = self.in_flight[rank] / len(mine)
        each_batch = sum(k.count * k.bytes_each for k in kept)
        largest = max((k.bytes_each for k in kept), default=0.0)
        rerun = max(
            layer.expert_rerun if any(share.expert_layers for share in mine) else 0.0,
            layer.dense_rerun if any(share.dense_layers for share in mine) else 0.0,
        )
        # Without buffers, a step's first backward allocates the gradients. If it follows all
        # forwards, they first exist when one micro-batch has left.
        late = not memory.keeps_gradients and run.num_microbatches * len(mine) <= round(
            self.in_flight[rank]
        )
        later = (in_flight - late, static.gradients)
        first = (in_flight, 0.0) if late else later
        peaks = [_Peak("end of the forward pass", *first, extra=0.0)]
        for moment in memory.moments:
            name, extra = moment.name, tensors.total(moment.tensors, here)
            if moment.where == "step":
                peaks.append(_Peak(name, 0.0, static.gradients, extra))
            elif moment.where == "layer" and any(share.num_layers for share in mine):
                extra += rerun + widened_bytes(run)
                peaks.append(_Peak(name, *first, extra))
                peaks.append(_Peak(name, *later, extra + late * largest))
            elif moment.where == "head" and any(share.has_head for share in mine):
                # Multi-token prediction: each further token has its own logits and loss.
                extra *= 1 + run.model.predicted_ahead
                peaks.append(_Peak(name, *first, extra))
                peaks += [_Peak(name, *later, extra)] * (in_flight > late)
            elif moment.where == "embedding" and any(share.has_embedding for share in mine):
                peaks.append(_Peak(name, *later, extra))
        held, peak = max(
            ((on_device_bytes(run, tensors, each_batch * peak.in_flight), peak) for peak in peaks),
            key=lambda pair: pair[0] + pair[1].gradients + pair[1].extra,
        )
        extra = peak.extra
        lasting = static.parameters + static.optimizer + peak.gradients + always
        passing = held + extra
        # Kept micro-batches refill blocks of equal sizes. Unused blocks remain from temporary
        # tensors while one layer computes.
        working_set = extra + (largest if held else 0.0)
        # FSDP2 allocates gradients on the stream of its collectives, which reuses no blocks of
        # freed activations (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
        reserved = lasting + passing + static.gradients - peak.gradients
        reserved += working_set * memory.cached_over_working_set.value
        layers_in_flight = sum(share.num_layers for share in mine) * in_flight
        waiting = sum(
            tensors.bytes_of(tensor.one(), here) * min(tensor.most, tensor.each * layers_in_flight)
            for tensor in memory.lingering
        )
        # Without room for them, the allocator waits for the device and reuses them.
        lingering = min(waiting, max(0.0, self.device.usable_bytes - reserved))
        found = RankMemory(
            rank=rank,
            parameters_bytes=static.parameters,
            gradients_bytes=peak.gradients,
            optimizer_bytes=static.optimizer,
            activations_bytes=held,
            transient_bytes=extra,
            communication_bytes=always,
            capacity_bytes=self.device.usable_bytes,
            peak_time_s=0.0,
            reserved_bytes=reserved + lingering,
            # Reused blocks are scattered between kept tensors: the runs that failed needed room for
            # both.
            required_bytes=lasting + passing * memory.needed_over_allocated.value + waiting,
            host_bytes=host_bytes(run, self.framework, sum(share.num_layers for share in mine)),
        )
        details = PeakDetails(
            here=here,
            kept=kept,
            in_flight=peak.in_flight,
            moment=peak.moment,
            all_activations_bytes=on_device_bytes(run, tensors, each_batch * in_flight),
            all_gradients_bytes=static.gradients,
            working_set_bytes=working_set,
            lingering_bytes=lingering,
        )
        return found, details


def _refusal(run: TrainingRun, memory: FrameworkMemory, shares: tuple[StageShare, ...]) -> str:
    """Why the framework would not run the layout, or "". nanotron builds no empty stage, and its
    1F1B engine asserts at least p - 1 micro-batches
    (src/nanotron/parallel/pipeline_parallel/engine.py, OneForwardOneBackwardPipelineEngine)."""
    empty = sum(share.is_empty for share in shares)
    pp = run.degrees.pp
    if empty:
        return (
            f"{empty} of {run.degrees.pp} pipeline ranks would hold no block of {memory.name}'s cut"
        )
    if memory.stage_split == "cost" and run.num_microbatches < pp - 1:
        return (
            f"{run.num_microbatches} micro-batches are fewer than the pp - 1 = {pp - 1} that "
            f"{memory.name}'s 1F1B needs"
        )
    return ""
