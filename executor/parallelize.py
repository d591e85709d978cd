"""Applying a plan's tensor and data parallelism to the stages of one rank.

Tensor parallelism splits linear layers by columns or rows, embedding and head by the vocabulary
(profiles/model/tracing/trace_split_layers.py). A rank's shares are plain tensors.

Data parallelism by ZeRO stage: 0 shards nothing (replica_gradients.py). 1 to 3 use FSDP2
(fully_shard per block). It reduces each block's gradients in each backward; under ZeRO 1, and in a
pipeline, only in the last one of a step. 1 and 2 keep parameters whole between the passes, 3 shards
them again after each. bf16 plans keep fp32 weights, gradient sums and states, and compute in bf16,
by FSDP2 or with our own copies (working_copies.py), where frozen weights exist in bf16 only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_map_only

from executor.mesh import Mesh, local, sum_over
from executor.replay.data_flow import written_units
from executor.stages import StageModule
from executor.starting_weights import StartingWeights
from executor.weight_products import outside_weights
from executor.working_copies import WorkingCopies
from profiles.errors import RunError
from profiles.model.building.tensor_parallel_rules import HEAD, Rule, matches
from profiles.model.tracing.trace_split_layers import SplitLayers
from profiles.model.tracing.trace_tensor_parallel import shard
from simulator.memory.held import shard_dimension
from simulator.values.plan import Plan

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


@dataclass(frozen=True, slots=True)
class _TensorRanks:
    """Exchanges between the ranks of a tp group, `Exchange` of trace_split_layers.py."""

    group: Any

    def reduce(self, x: Tensor, operation: str) -> Tensor:
        dist.all_reduce(x, _REDUCTIONS[operation], self.group)
        return x

    def gather(self, out: Tensor, part: Tensor) -> None:
        dist.all_gather_into_tensor(out.flatten(0, 1), part, self.group)

    def scatter(self, out: Tensor, parts: Tensor) -> None:
        dist.reduce_scatter_tensor(out, parts.flatten(0, 1), group=self.group)


def split_layers(
    model: nn.Module, rules: Iterable[Rule], mesh: Mesh, starting: StartingWeights
) -> SplitLayers:
    """Split the linear layers and the vocabulary of a stage's model, whose weights are still on
    meta, over the tp group, and add hooks to the linear layers.

    Raises TraceError for features that tp does not divide.
    """
    whole = dict(model.named_parameters(remove_duplicate=False))
    sharding = shard(model, rules, mesh.degrees.tp)
    layers = SplitLayers(sharding, _TensorRanks(mesh.tp.get_group()), mesh.at.tp)
    layers.hook(model)
    for name in sharding.splits:
        take = partial(sharding.share, name=name, rank=mesh.at.tp)
        starting.split(whole[name], model.get_parameter(name), take)
    return layers


def apply_tensor_parallelism(
    stage: StageModule, rules: Iterable[Rule], mesh: Mesh, starting: StartingWeights
) -> None:
    """Let a stage's linear layers, embeddings, head and loss work on this rank's shares."""
    layers = split_layers(stage.model, rules, mesh, starting)
    layers.hook_vocabulary(stage.model, lambda: stage.runs_own)
    stage.sharding = layers.sharding
    for path, side in layers.sharding.rules.items():
        if side == HEAD:
            head: Any = stage.model.get_submodule(path)
            first = mesh.at.tp * head.out_features
            stage.split_logits(first=first, reduce=layers.exchange.reduce)


def sum_shared_gradients(named: Iterable[tuple[str, nn.Parameter]], plan: Plan, mesh: Mesh) -> None:
    """Sum over the tp group, in one message, the gradients of whole parameters that each rank
    applies to its share only, such as one norm for the queries of all heads."""
    rules = [pattern for pattern, kind in plan.tensor_parallel if kind == "sum_gradient"]
    if plan.degrees.tp == 1 or not rules:
        return
    shared = [p for name, p in named if any(matches(pattern, name) for pattern in rules)]
    gradients = [local(p.grad) for p in shared if p.grad is not None]
    if gradients:
        together = _flatten_dense_tensors(gradients)
        sum_over(together, mesh.tp.get_group(), mesh.tp.device_type)
        torch._foreach_copy_(gradients, _unflatten_dense_tensors(together, gradients))


def apply_fully_sharded(
    stage: StageModule,
    plan: Plan,
    mesh: Mesh,
    compute_dtype: torch.dtype,
    starting: StartingWeights,
) -> None:
    """Fill the stage's weights and apply the plan's sharding: FSDP2 with one unit per block and one
    for the remaining parameters, each filled right before it is sharded; working copies if the plan
    only uses mixed precision.

    compute_dtype  type of forward and backward; weights, gradient sums and optimizer states are
                   fp32
    """
    if not plan.zero_stage or plan.degrees.dp == 1:
        starting.fill(stage.model)
        if plan.workload.precision != "fp32":
            stage.copies = WorkingCopies(stage.model, compute_dtype)
        return
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    policy = as_given = MixedPrecisionPolicy()
    if compute_dtype not in (torch.float32, torch.float64):
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        # Received tensors have the model's types; integers are sent bit by bit.
        as_given = replace(policy, cast_forward_inputs=False)
    settings: dict[str, Any] = {
        "mesh": mesh.shards,
        "reshard_after_forward": plan.zero_stage == 3,
        "mp_policy": policy,
        "shard_placement_fn": lambda p: Shard(shard_dimension(p.shape, plan.shares)),
    }
    if plan.optimizer_offload:  # no effect on a CPU, whose memory is host memory
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.shards.device_type != "cpu")

    def shard(module: nn.Module, **changed: Any) -> None:
        starting.fill(module)
        whole = {p for p in module.parameters() if kept_whole(p)}
        fully_shard(module, ignored_params=whole, **{**settings, **changed})

    modules = dict(stage.model.named_modules())
    called = [p for b in range(stage.first, stage.last) for p in stage.unit_paths(b) if p]
    # A unit's weights are whole while it runs, those of the stage while the stage runs.
    read = stage.flow.reads.keys() | stage.flow.differentiated
    paths = [path for path in called if path not in read]
    units = {modules[path]: None for path in paths}
    written = {modules[path] for path in written_units(stage.flow).intersection(paths)}
    for module in without_shared_weights(tuple(units), stage.model):
        held = any(p.numel() for p in module.parameters())
        if held and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            module.register_forward_hook(_without_views if module in written else _without_weights)
            shard(module)
    shard(stage, mp_policy=as_given)
    _sum_what_any_replica_trained(stage)


def kept_whole(p: Tensor) -> bool:
    """Whether every replica keeps a whole parameter although FSDP2 shards the others: a single
    number, or a complex parameter among real ones. Rank averages its gradients."""
    return p.dim() == 0 or p.is_complex()


def _without_weights(module: nn.Module, args: Any, output: Any) -> Any:
    """Hook: copies the weights that a unit returns (learned latents, expanded)."""
    return tree_map_only(Tensor, outside_weights, output)


def _without_views(module: nn.Module, args: Any, output: Any) -> Any:
    """Hook: copies outputs that are views. FSDP2 gathers a unit's weights when the gradient of its
    output arrives. It misses that gradient if the output is a view (as of a linear layer) and is
    changed in place after the unit, because autograd then replaces the view's node."""
    output = _without_weights(module, args, output)
    return tree_map_only(Tensor, lambda x: x.clone() if x._is_view() else x, output)


def _sum_what_any_replica_trained(stage: StageModule) -> None:
    """Let FSDP2 sum zeros for weights without gradients. It sums only the gradients that a rank
    has, and replicas that send rows to different experts have gradients of different weights.

    The gradients of a unit that is called several times come with its first call, the last in the
    backward: other calls would send zeros.
    """
    zeros_for_others = getattr(stage, "set_reduce_scatter_unused_params", None)  # from torch 2.13
    flow = stage.flow
    if zeros_for_others is not None:
        zeros_for_others(True)
        calls = Counter(c.function for c in flow.calls if stage.first <= c.block < stage.last)
        for path in () if flow.by_value or flow.draws_from_others else flow.units:
            unit: Any = stage.model.get_submodule(path)
            if calls[path] > 1 and hasattr(unit, zeros_for_others.__name__):
                unit.set_reduce_scatter_unused_params(False, recurse=False)
    elif flow.by_value:
        raise RunError(
            "the trained weights of this model depend on its inputs, and FSDP2 of torch "
            f"{torch.__version__} would add up gradients of different weights; use torch 2.13 or "
            "later, or plan with --zero 0"
        )


def without_shared_weights(units: tuple[nn.Module, ...], model: nn.Module) -> tuple[nn.Module, ...]:
    """The units of a model that share no parameter with another unit or with code outside of units.

    FSDP2 assigns a parameter to one unit. Parameters of several units (T5's embedding table, used
    by encoder, decoder and head; a layer in two wrappers) belong to the stage as a whole.
    """
    holders = Counter(id(p) for unit in units for p in set(unit.parameters()))
    owners = defaultdict(set)
    for module in model.modules():
        for held in (*module.parameters(recurse=False), *module.children()):
            owners[id(held)].add(id(module))

    def alone(unit: nn.Module) -> bool:
        inside = {id(module) for module in unit.modules()}
        parts = (*unit.parameters(), *(part for part in unit.modules() if part is not unit))
        once = all(holders[id(p)] == 1 for p in unit.parameters())
        return once and all(owners[id(part)] <= inside for part in parts)

    return tuple(unit for unit in units if alone(unit))


def own_part(p: nn.Parameter) -> nn.Parameter:
    """The part of a parameter that this rank's optimizer updates, in the same memory: its shard
    under FSDP2. As a DTensor it would pass through DTensor dispatch in each of AdamW's ten ops,
    half a millisecond per parameter on a CPU (torch 2.13, two linear layers, 2026-11-22)."""
    return nn.Parameter(p.to_local().detach()) if isinstance(p, DTensor) else p


def own_gradient(p: nn.Parameter) -> Tensor | None:
    """The gradient of `own_part`, in the same memory.

    Autograd is disabled: otherwise each gradient took 25 us of host time, 3.5 of the 13 ms of a
    MobileNet's optimizer step in bf16 (142 parameters, torch 2.13 on a CPU, 2026-11-22).
    """
    with torch.no_grad():
        return None if p.grad is None else local(p.grad)
