"""Weights that a run starts with: the same whatever the plan, made where they are held."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from executor.replay.wire import stored_type
from profiles.errors import ModelError
from profiles.model.building.build import BuiltModel, build_model, needs_values, to_meta
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace_tensor_parallel import by_rank
from simulator.values.plan import Plan


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside it, modules are built with real buffers and meta parameters."""
    register = nn.Module.register_parameter

    def to_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and param.device.type != "meta":
            made = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            module._parameters[name] = made

    nn.Module.register_parameter = to_meta  # type: ignore[method-assign, assignment] # undone
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign] # as it was


def initial_value(name: str, like: Tensor, seed: int) -> Tensor:
    """The starting value of a parameter: a function of its name, shape and the seed alone.

    Matrices are normal with deviation 0.02 (GPT-2's, Radford et al. 2019), vectors are 1 and biases
    0, so that every split of a model starts from the same weights without one rank holding all.
    Weights are fp32 whatever the model computes in (parallelize.apply_fully_sharded), but in fp64.
    """
    dtype = stored_type(like)
    if like.dim() < 2:
        fill = 0.0 if name.endswith("bias") else 1.0
        return torch.full(like.shape, fill, dtype=dtype)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(like.shape, generator=generator).mul_(0.02).to(dtype)


class StartingWeights:
    """The starting values of a model's meta parameters, each made where `fill` comes to it: so a
    rank holds no more of a stage than what is sharded already and one unit.

    model  before any of its modules is replaced: tied parameters share their first name
    """

    def __init__(self, model: nn.Module, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._names: dict[Tensor, str] = {}
        self._parts: dict[Tensor, tuple[int, ...]] = {}
        for held in (model.named_parameters, model.named_buffers):
            for name, x in held(remove_duplicate=False):
                self._names.setdefault(x, name)

    def split(self, whole: nn.Parameter, share: nn.Parameter, parts: tuple[int, ...]) -> None:
        """`share`, a DTensor on meta, stands where `whole` did; its features lie rank by rank."""
        self._names[share], self._parts[share] = self._names[whole], parts

    @torch.no_grad()
    def fill(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Give every meta parameter of `module` its starting value, and every buffer that was made
        from parameters (the vectors of a spectral norm); returns the parameters by name."""
        made: dict[str, nn.Parameter] = {}
        for child in module.modules():
            for key, p in list(child._parameters.items()):
                if p is None or not p.is_meta:
                    continue
                name = self._names[p]
                if name not in made:
                    made[name] = nn.Parameter(self._value(p), requires_grad=p.requires_grad)
                child._parameters[key] = made[name]
            for key, b in child._buffers.items():
                if b is not None and b.is_meta:
                    child._buffers[key] = self._value(b).to(b.dtype)
                elif b is not None and b.device != self._device:
                    child._buffers[key] = b.to(self._device)
        return made

    def _value(self, x: Tensor) -> Tensor:
        value = initial_value(self._names[x], x, self._seed)
        if not isinstance(x, DTensor):
            return value.to(self._device)
        (placement,), mesh = x.placements, x.device_mesh
        if isinstance(placement, Shard):
            ordered = by_rank(value, self._parts[x], mesh.size(), placement.dim)
            value = ordered.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()].clone()
        share = value.to(self._device)
        return DTensor.from_local(share, mesh, [placement], run_check=False)


def builder_of(plan: Plan, spec: ModelSpec, dtype: str) -> Callable[..., BuiltModel]:
    """`build_meta` of a plan's model with its sequences and seed, of any micro-batch; the same
    object for the same model."""
    return _builder(spec, plan.workload.sequence_length, dtype, plan.seed)


@lru_cache(maxsize=16)
def _builder(
    spec: ModelSpec, sequence_length: int, dtype: str, seed: int
) -> Callable[..., BuiltModel]:
    return partial(build_meta, spec, sequence_length=sequence_length, dtype=dtype, seed=seed)


def build_meta(spec: ModelSpec, **settings: Any) -> BuiltModel:
    """The model with meta parameters and real buffers and inputs; its parameters are made where
    the factory asks for their values.

    settings  of `build_model`
    """
    build = partial(build_model, spec, device="cpu", **settings)
    try:
        with parameters_on_meta():
            return build()
    except ModelError as error:
        if not needs_values(error):
            raise
    built = build()
    to_meta(built.module, buffers=False)
    return built
