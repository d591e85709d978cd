"""Applying a plan's tensor and data parallelism to the stages of one rank.

Tensor parallelism splits linear layers by columns or rows, embedding and head by words, as in
Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3). A rank's shares are plain tensors.
torch's ColwiseParallel and RowwiseParallel make DTensors, whose dispatch costs more than 1 ms of
host time per product: a layer of Llama then took 6 times the host time of a whole one, and now
takes 1.2 to 1.3 times (bench/split_layer_host.py). They also lack layers that keep their weight as
[in, out] (GPT-2's Conv1D), and layers with one weight for query, key and value, of which a rank's
share has a part of each.

Data parallelism by ZeRO stage: 0 keeps everything whole (replica_gradients.py); 1 to 3 are FSDP2
(fully_shard per block), which sums each block's gradients in the backward that makes them: under 1,
and under a pipeline, in the last one of a step. 1 and 2 keep parameters whole between the passes, 3
shards them again after each. bf16 plans keep fp32 weights, gradient sums and
optimizer states, and compute in bf16: FSDP2's mixed precision where it shards, copies of our own
elsewhere (working_copies.py), where frozen weights are kept in bf16 alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from executor.mesh import Mesh, local, sum_over
from executor.replay.data_flow import written_units
from executor.stages import StageModule
from executor.starting_weights import StartingWeights
from executor.weight_products import outside_weights
from executor.working_copies import WorkingCopies
from profiles.errors import RunError
from profiles.model.building.tensor_parallel_rules import HEAD, TABLE, Rule, matches
from profiles.model.tracing.trace_tensor_parallel import Sharding, shard
from simulator.values.plan import Plan

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class _SumOutputs(torch.autograd.Function):
    """The sum of the ranks' partial outputs; the gradient of each part is that of the sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        return _summed(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _SumGradients(torch.autograd.Function):
    """A whole input, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _summed(gradient, ctx.group), None


def _summed(part: Tensor, group: Any) -> Tensor:
    """The sum over the ranks in new memory, because autograd may still hold the part."""
    total = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class WholeInputs:
    """Whole inputs of layers split by column, shared by consecutive layers that read the same
    tensor (queries, keys and values): autograd adds the gradients of these layers, and the ranks
    sum them once. The input is kept until the next layer split by row, because under recomputation
    no layer saves it."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group, self.first = mesh.get_group(), mesh.get_local_rank() == 0
        self._state: tuple[Tensor, int, bool] | None = None
        self._made: Tensor | None = None

    def take(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hook before a layer split by column."""
        x: Tensor = inputs[0]
        state = (x, x._version, torch.is_grad_enabled())
        if self._state is None or self._state[0] is not x or self._state[1:] != state[1:]:
            self._state, self._made = state, _SumGradients.apply(x, self.group)  # type: ignore[no-untyped-call] # torch's is
        return (self._made, *inputs[1:])

    def take_share(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Hook before a layer split by row."""
        self._state = self._made = None
        bias = module._parameters.get("bias")
        if bias is not None:
            # Only the first rank adds the whole bias, others 0; each gets its whole gradient. The
            # module finds this tensor first. A recomputation may end inside the layer, so the
            # parameter is left where it is.
            vars(module)["bias"] = bias - bias.detach() * (not self.first)

    def give_sum(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Hook after a layer split by row."""
        vars(module).pop("bias", None)
        total: Tensor = _SumOutputs.apply(output, self.group)  # type: ignore[no-untyped-call] # torch's is
        return total


def apply_tensor_parallelism(
    model: nn.Module, rules: Iterable[Rule], mesh: Mesh, starting: StartingWeights
) -> Sharding:
    """Split a stage's linear layers and vocabulary, whose weights are still on meta, over the tp
    group; `hook_vocabulary` completes the latter.

    Raises TraceError for features that tp does not divide.
    """
    whole = dict(model.named_parameters(remove_duplicate=False))
    sharding = shard(model, rules, mesh.degrees.tp)
    inputs = WholeInputs(mesh.tp)
    for path, side in sharding.rules.items():
        module = model.get_submodule(path)
        if side == "column":
            module.register_forward_pre_hook(inputs.take)
        elif side == "row":
            module.register_forward_pre_hook(inputs.take_share)
            module.register_forward_hook(inputs.give_sum)
    for name in sharding.splits:
        take = partial(sharding.share, name=name, rank=mesh.at.tp)
        starting.split(whole[name], model.get_parameter(name), take)
    return sharding


def hook_vocabulary(stage: StageModule, mesh: Mesh) -> None:
    """Let a stage's embeddings, head and loss work on this rank's words: a lookup gives zeros for
    other words, and the ranks sum."""
    group, rank = mesh.tp.get_group(), mesh.at.tp
    outside: dict[nn.Module, Tensor] = {}

    def look_up(table: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not stage.runs_own:
            return None
        row = inputs[0] - rank * table.num_embeddings
        outside[table] = (row < 0) | (row >= table.num_embeddings)
        return (row.masked_fill(outside[table], 0), *inputs[1:])

    def sum_rows(table: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if table not in outside:
            return output
        own = output.masked_fill(outside.pop(table).unsqueeze(-1), 0.0)
        total: Tensor = _SumOutputs.apply(own, group)  # type: ignore[no-untyped-call] # torch's is
        return total

    def take(head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not stage.runs_own:
            return None
        return (_SumGradients.apply(inputs[0], group), *inputs[1:])  # type: ignore[no-untyped-call] # torch's is

    def over_ranks(x: Tensor, operation: str) -> Tensor:
        dist.all_reduce(x, _REDUCTIONS[operation], group)
        return x

    for path, side in stage.sharding.rules.items():
        module: Any = stage.model.get_submodule(path)
        if side == TABLE:
            padding = stage.sharding.padding[path]
            owner, row = (-1, 0) if padding is None else divmod(padding, module.num_embeddings)
            module.padding_idx = row if owner == rank else None
            module.register_forward_pre_hook(look_up)
            module.register_forward_hook(sum_rows)
        elif side == HEAD:
            module.register_forward_pre_hook(take)
            stage.split_logits(first=rank * module.out_features, reduce=over_ranks)


def sum_shared_gradients(named: Iterable[tuple[str, nn.Parameter]], plan: Plan, mesh: Mesh) -> None:
    """Sum over the tp group the gradients of whole parameters that each rank applies to its share
    only, such as one norm for the queries of all heads."""
    rules = [pattern for pattern, kind in plan.tensor_parallel if kind == "sum_gradient"]
    if plan.degrees.tp == 1 or not rules:
        return
    for name, p in named:
        if p.grad is not None and any(matches(pattern, name) for pattern in rules):
            sum_over(local(p.grad), mesh.tp.get_group(), mesh.tp.device_type)


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
        # What a stage receives has the types that the model made; whole numbers cross as bits.
        as_given = replace(policy, cast_forward_inputs=False)
    settings: dict[str, Any] = {
        "mesh": mesh.shards,
        "reshard_after_forward": plan.zero_stage == 3,
        "mp_policy": policy,
    }
    if plan.optimizer_offload:  # on a CPU, whose memory is the host's, it moves nothing
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.shards.device_type != "cpu")

    def shard(module: nn.Module, **changed: Any) -> None:
        starting.fill(module)
        whole = {p for p in module.parameters() if kept_whole(p)}
        fully_shard(module, ignored_params=whole, **{**settings, **changed})

    modules = dict(stage.model.named_modules())
    called = [p for b in range(stage.first, stage.last) for p in stage.unit_paths(b) if p]
    # A unit's weights are whole while it runs itself, those of the stage while the stage runs.
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
    output arrives. It misses that gradient if the output is a view (as of a linear layer) that is
    changed in place after the unit, because autograd replaces the view's node."""
    output = _without_weights(module, args, output)
    return tree_map_only(Tensor, lambda x: x.clone() if x._is_view() else x, output)


def _sum_what_any_replica_trained(stage: StageModule) -> None:
    """Let FSDP2 sum zeros for weights without gradients. It sums only the gradients that a rank
    has, and replicas that send rows to different experts have gradients of different weights."""
    zeros_for_others = getattr(stage, "set_reduce_scatter_unused_params", None)  # from torch 2.13
    if zeros_for_others is not None:
        zeros_for_others(True)
    elif stage.flow.by_value:
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
