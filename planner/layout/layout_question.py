"""`LayoutQuestion`: model, cluster, workload and allowed layouts.

`LayoutSolver` searches them, and those of neighboring questions, within one time limit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.axes import Axes
from planner.best_first import Progress
from planner.layout.layout_search import LayoutGoal, LayoutOutcome, search_layouts
from planner.layout.memory_floor import MemoryLimit
from planner.layout.prices import LayoutPrices
from planner.layout.refined_layout import PricedLayout
from planner.run_option import RequestedOptions, RunOption, run_options, unoffered
from planner.space import LayoutContext, divisors
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device, node_design
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.node_network import NodeNetwork, network_of_level, usual_network
from profiles.model.figures.transformer import Transformer
from simulator.training_run.fit.recalibration import Calibration, calibrated
from simulator.training_run.framework.framework import FrameworkRules, load_framework
from simulator.training_run.run.training_run import NetworkLevel, TrainingRun, mean_document_length
from simulator.training_run.work.stage_share import predictor_units
from simulator.values.degrees import Degrees
from simulator.values.pipeline_layout import layout_ranks, pipeline_layout_text, stages_of_layout
from simulator.values.recompute_kind import recompute_kind
from simulator.values.workload import MOST

# Light takes 0.1 ms for 20 km of fiber: a level with this latency connects sites, not nodes.
_SITE_LATENCY_S = 1e-4


def base_run(
    name: str,
    model: Transformer,
    cluster: Cluster,
    *,
    rules: FrameworkRules,
    global_batch: int,
    seq_len: int,
    precision: str,
) -> TrainingRun:
    """The run with every degree 1.

    Raises InputError for a cluster of several device types and for counts below 1.
    """
    device = only_device(cluster)
    if global_batch < 1:
        raise InputError(f"--global-batch must be 1 or more, got {global_batch}")
    if max(global_batch, seq_len) > MOST:
        flag, value = max(("--global-batch", global_batch), ("--seq", seq_len), key=lambda f: f[1])
        raise InputError(f"{flag} may be {MOST:,} at most, got {value:,}")
    node = min(cluster.levels[0].domain_size if cluster.levels else 1, cluster.num_devices)
    return TrainingRun(
        id=name,
        model=model,
        device=device.name,
        degrees=Degrees(tp=1, pp=1, dp=cluster.num_devices),
        node_devices=node,
        network=_network(cluster, device, node),
        sequence_parallel=rules.sequence_parallel,
        zero_stage=0,
        recompute="none",
        micro_batch=1,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        schedule="1f1b",
        stack=rules.name,
        inner_bytes_per_s=_inner_bytes_per_s(cluster, device),
        far_levels=far_levels_of(cluster),
        torus=_torus(cluster),
    )


def network_assumptions(run: TrainingRun, cluster: Cluster) -> list[str]:
    """Assumptions about links of `base_run` for which there is no measurement, as text."""
    found = [
        f"level {level.name}: parts of {level.part_devices} devices, "
        f"{level.bytes_per_s_per_device / 1e9:.3g} GB/s of what leaves a part for each, "
        f"{level.latency_s * 1e6:.3g} us; priced at its own rate and efficiency, not fitted"
        for level in run.far_levels
    ]
    network, inner = run.network, run.inner_bytes_per_s
    if network is not None and network.assumed and cluster.num_devices > run.node_devices:
        found.append(f"{network.words} ({network.source}; --on names a cluster file to change it)")
    if inner:
        found.append(
            f"inside a node, messages are priced at the rate and efficiency of "
            f"{cluster.levels[0].link.name}, {inner / 1e9:.3g} GB/s; nothing of it was measured"
        )
    return found


def only_device(cluster: Cluster) -> Device:
    """The cluster's device type; raises InputError if there are several."""
    names = sorted({group.device.name for group in cluster.groups})
    if len(names) > 1:
        raise InputError(
            f"--on {cluster.name} mixes {', '.join(names)}: a framework's layout gives every rank "
            "the same share. Name one part of it, or leave out --stack to plan a traced model."
        )
    return cluster.groups[0].device


def far_levels_of(cluster: Cluster) -> tuple[NetworkLevel, ...]:
    """The levels beyond the network of a node: from the third on, or from the second if its latency
    is that of a line between sites."""
    found = []
    for below, level in itertools.pairwise(cluster.levels):
        nearest = below is cluster.levels[0]
        if nearest and level.link.latency_s.value < _SITE_LATENCY_S:
            continue
        link = level.link
        rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
        found.append(
            NetworkLevel(
                name=level.name,
                part_devices=below.domain_size,
                bytes_per_s_per_device=rate / link.shared_by / level.oversubscription,
                latency_s=link.latency_s.value,
            )
        )
    return tuple(found)


def _inner_bytes_per_s(cluster: Cluster, device: Device) -> float:
    """Bandwidth of the innermost level in bytes/s; 0 if it is the device's usual link."""
    if not cluster.levels or cluster.num_devices < 2:
        return 0.0
    link = cluster.levels[0].link
    if link.name == node_design(device.name).inner_link:
        return 0.0
    return link.bandwidth_bytes_per_s.value * link.efficiency.value / link.shared_by


def _torus(cluster: Cluster) -> tuple[int, ...]:
    """The sides of the innermost level, the only one that may be a torus."""
    for level in cluster.levels[1:]:
        if level.torus:
            raise InputError(
                f"--on {cluster.name}: level {level.name} is a torus; only the innermost may be"
            )
    return cluster.levels[0].torus if cluster.levels else ()


def _network(cluster: Cluster, device: Device, node: int) -> NodeNetwork:
    """The network between nodes: the second level, or the device's usual network if there is
    none."""
    usual = usual_network(device.name, node)
    if len(cluster.levels) < 2 or cluster.levels[1].link.latency_s.value >= _SITE_LATENCY_S:
        return usual
    found = network_of_level(cluster.levels[1], node)
    return usual if replace(usual, source=found.source, assumed=False) == found else found


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutQuestion:
    """The input of a search over layouts.

    name, model  the model's name, and its sizes
    stack        framework of the run
    precision    of matmuls, unless `options` has one
    options      allowed choices in addition to the axes
    fit_risk     accepted probability of running out of memory
    calibration  coefficients refitted on own runs, instead of the shipped ones
    lora_rank    of the trained low-rank adapters; 0 trains all weights
    """

    name: str
    model: Transformer
    cluster: Cluster
    stack: str
    global_batch: int
    seq_len: int
    precision: str
    space: Axes
    options: RequestedOptions = field(default_factory=RequestedOptions)
    fit_risk: float = DEFAULT_FIT_RISK
    calibration: Calibration | None = None
    lora_rank: int = 0

    def __post_init__(self) -> None:
        if self.space.recompute is not None:
            meant = tuple(map(load_framework(self.stack).resolved_recompute, self.space.recompute))
            object.__setattr__(self, "space", replace(self.space, recompute=meant))
        if not 0.0 < self.fit_risk < 1.0:
            raise InputError(
                f"--fit-risk {self.fit_risk:g}: the probability of running out of memory must be "
                "above 0 and below 1; write 10%, or 0.1"
            )
        if self.lora_rank < 0:
            raise InputError(f"--lora {self.lora_rank}: the rank of adapters must be 1 or more")
        if self.options.frozen_type and not self.lora_rank:
            raise InputError(
                f"--base-precision {self.options.frozen_type} applies to frozen weights, but this "
                "run trains all weights; add --lora RANK, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """The layout part of a sweep question: framework, precision, axes and options."""

    stack: str
    precision: str = "bf16"
    space: Axes = field(default_factory=Axes)
    options: RequestedOptions = field(default_factory=RequestedOptions)

    def pins(self) -> tuple[str, ...]:
        """The fixed axes and options, as flags."""
        return (f"--stack {self.stack}", *self.space.pins(), *self.options.words)


def context_of(question: LayoutQuestion) -> tuple[TrainingRun, LayoutContext]:
    """The run before its layout is chosen, and the limits of the axes."""
    rules = load_framework(question.stack).rules
    base = base_run(
        question.name,
        question.model,
        question.cluster,
        rules=rules,
        global_batch=question.global_batch,
        seq_len=question.seq_len,
        precision=question.precision,
    )
    assumed = network_assumptions(base, question.cluster)
    if question.lora_rank:
        base = replace(base, lora=True, lora_rank=question.lora_rank)
        assumed.append(
            f"adapters of rank {question.lora_rank} on the attention's linear layers are trained, "
            "all other weights are frozen (--lora)"
        )
    if question.options.sequence_parallel:
        base = replace(base, sequence_parallel=True)
    base, more = _with_data(base, question.options)
    base = _with_layout(base, question.options.pipeline_layout)
    assumed += more
    groups = question.space.replicate_groups
    options = run_options(
        question.options, base, rules, get_device(base.device), dp_replicate=groups
    )
    assumed += unoffered(question.options, rules, hybrid=max(groups) > 1)
    return base, layout_context(base, rules, options=options, assumptions=tuple(assumed))


def _with_data(run: TrainingRun, options: RequestedOptions) -> tuple[TrainingRun, list[str]]:
    """The run with unevenly loaded experts or packed documents, and the assumptions.

    Raises InputError for imbalance without experts.
    """
    imbalance = options.expert_imbalance
    length = mean_document_length(options.documents, run.seq_len)
    if imbalance > 1.0 and not run.model.num_experts:
        raise InputError(f"--expert-imbalance {imbalance:g}: {run.id} has no experts; leave it out")
    notes = []
    if imbalance > 1.0:
        notes.append(
            f"the fullest expert-parallel rank has {imbalance:g} times the mean number of tokens, "
            "at every ep above 1 (--expert-imbalance)"
        )
    if length:
        notes.append(
            f"tokens attend within their document only, of {length:,.0f} tokens on average "
            "(--lengths); all sequences have the same mix of lengths"
        )
    return replace(run, expert_imbalance=imbalance, document_length=length), notes


def _with_layout(run: TrainingRun, layout: str) -> TrainingRun:
    """The run with its pipeline layout in canonical form; raises InputError if the model cannot
    have it."""
    if not layout:
        return run
    model = run.model
    stages = stages_of_layout(layout, model.num_layers, model.predicted_ahead, "--pipeline-layout")
    return replace(run, pipeline_layout=pipeline_layout_text(stages))


def layout_context(
    run: TrainingRun,
    rules: FrameworkRules,
    *,
    options: tuple[RunOption, ...] = (RunOption(),),
    assumptions: tuple[str, ...] = (),
) -> LayoutContext:
    """The limits of the axes of a run. Context parallelism splits each rank's sequence into two
    chunks to balance causal attention (Megatron-Core, context parallelism)."""
    model, halves = run.model, divisors(run.seq_len // 2) if run.seq_len % 2 == 0 else ()
    kinds = tuple(name for name in rules.recompute if recompute_kind(name).suits(model))
    return LayoutContext(
        rules=replace(rules, recompute=kinds),
        num_devices=run.degrees.num_devices,
        node_devices=run.node_devices,
        global_batch=run.global_batch,
        num_layers=model.num_layers,
        layout_ranks=layout_ranks(run.pipeline_layout),
        tp_degrees=divisors(model.num_heads),
        cp_degrees=tuple(sorted({1, *halves})),
        ep_degrees=divisors(max(1, model.num_experts)),
        predictor_units=predictor_units(model),
        may_idle=not run.torus,  # a torus is used as a whole
        options=options,
        tokens=run.seq_len,
        why_not_tensor_parallel=f"tp must divide the model's {model.num_heads} attention heads",
        why_not_context_parallel=f"every rank has two equal parts of the {run.seq_len} tokens, so "
        "cp must divide half of them (--seq)",
        assumptions=assumptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSolver:
    """Solves several questions within one time limit.

    end_s  end of the time limit, on the clock
    """

    clock: Callable[[], float]
    end_s: float = math.inf

    @property
    def has_time(self) -> bool:
        """Whether time is left."""
        return self.clock() < self.end_s

    def search(
        self,
        question: LayoutQuestion,
        *,
        capacity: float = 1.0,
        altered: Callable[[TrainingRun], TrainingRun] = lambda run: run,
        runners_up: int = 0,
        goal: LayoutGoal | None = None,
        below: float = math.inf,
        progress: Progress | None = None,
    ) -> LayoutOutcome:
        """The result of the search within the remaining time. `capacity` multiplies the device's
        memory, `altered` changes the run before its layout is chosen, `runners_up`, `goal` and
        `below` are as in `search_layouts`.

        Raises InputError if no layout is legal.
        """
        base, context = context_of(question)
        base = altered(base)
        return search_layouts(
            LayoutPrices(base, calibrated(question.calibration)),
            question.space,
            context,
            limit=MemoryLimit(
                capacity_bytes=capacity * get_device(base.device).usable_bytes,
                risk=question.fit_risk,
            ),
            runners_up=runners_up,
            clock=self.clock,
            time_limit_s=self.end_s - self.clock(),
            progress=progress,
            goal=goal,
            below=below,
        )

    def best(
        self,
        question: LayoutQuestion,
        *,
        capacity: float = 1.0,
        altered: Callable[[TrainingRun], TrainingRun] = lambda run: run,
    ) -> PricedLayout | None:
        """The best layout; None if nothing is legal, nothing fits or no time is left."""
        if not self.has_time:
            return None
        try:
            outcome = self.search(question, capacity=capacity, altered=altered)
        except InputError:
            return None
        return outcome.layouts[0] if outcome.layouts else None
