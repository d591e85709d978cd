"""Starting weights of a run: independent of the plan, and created on the rank that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from executor.replay.wire import stored_type
from profiles.errors import ModelError
from profiles.model.building.build import BuiltModel, build_model, needs_values, to_meta
from profiles.model.loaders import ModelSpec
from simulator.values.plan import Plan


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Context in which modules are built with real buffers and meta parameters."""
    register = nn.Module.register_parameter

    def to_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and param.device.type != "meta":
            made = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            made._is_hf_initialized = True  # type: ignore[attr-defined] # transformers then draws no values
            module._parameters[name] = made

    nn.Module.register_parameter = to_meta  # type: ignore[method-assign, assignment] # undone
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign] # as it was


def initial_value(name: str, like: Tensor, seed: int) -> Tensor:
    """The starting value of a parameter, a function of its name, shape and the seed only.

    Matrices are normal with deviation 0.02 (GPT-2's, Radford et al. 2019), vectors are 1 and biases
    0, so that every split of a model starts from the same weights, and no rank needs all of them.
    Weights are fp32 for every compute type except fp64 (parallelize.apply_fully_sharded).
    """
    dtype = stored_type(like)
    if like.dim() < 2:
        fill = 0.0 if name.endswith("bias") else 1.0
        return torch.full(like.shape, fill, dtype=dtype)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(like.shape, generator=generator).mul_(0.02).to(dtype)


class StartingWeights:
    """The starting values of a model's meta parameters, created by `fill` one by one: a rank never
    holds more than the sharded part of a stage and one unit.

    model  before any of its modules is replaced: tied parameters share their first name
    """

    def __init__(self, model: nn.Module, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._names: dict[Tensor, str] = {}
        self._shares: dict[Tensor, tuple[Tensor, Callable[[Tensor], Tensor]]] = {}
        for held in (model.named_parameters, model.named_buffers):
            for name, x in held(remove_duplicate=False):
                self._names.setdefault(x, name)

    def split(
        self, whole: Tensor, share: nn.Parameter, share_of: Callable[[Tensor], Tensor]
    ) -> None:
        """Replace `whole` by `share` (on meta); `share_of` selects its values from the whole."""
        self._names[share], self._shares[share] = self._names[whole], (whole, share_of)

    @torch.no_grad()
    def fill(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Give every meta parameter of `module` its starting value, and every buffer that is
        computed from parameters (the vectors of a spectral norm); returns the parameters by name.
        """
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
        whole, share_of = self._shares.get(x, (x, Tensor.detach))
        return share_of(initial_value(self._names[x], whole, self._seed)).to(self._device)


def builder_of(plan: Plan, spec: ModelSpec, dtype: str) -> Callable[..., BuiltModel]:
    """`build_meta` for a plan's model, sequence length and seed, and any micro-batch; cached per
    model."""
    return _builder(spec, plan.workload.sequence_length, dtype, plan.seed)


@lru_cache(maxsize=16)
def _builder(
    spec: ModelSpec, sequence_length: int, dtype: str, seed: int
) -> Callable[..., BuiltModel]:
    return partial(build_meta, spec, sequence_length=sequence_length, dtype=dtype, seed=seed)


def build_meta(spec: ModelSpec, **settings: Any) -> BuiltModel:
    """The model with meta parameters, real buffers and real inputs; parameters are created if the
    factory reads their values.

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
