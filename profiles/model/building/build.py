"""Build a model as a torch module with inputs, on meta or on a device.

The only file that imports transformers, inside functions, since factories do not need it. A factory
gives the tokens of a sample as its fifth value, or as `tokens_per_sample` of itself or its module.
Inputs that are all integers of one shape [batch, length] are sequences of tokens. Other inputs are
counted in samples: images, measurements, rows of a table.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from profiles.errors import ModelError
from profiles.model.activity import doing
from profiles.model.building.build_feeds import Feed, Loss, assumed_loss, feed_of
from profiles.model.building.tensor_parallel_rules import Rule
from profiles.model.loaders import OWN_LOSS, ModelSpec, need_to_build, position_count


def stated_tokens(name: str, *values: Any) -> int | None:
    """The first of `values` that is not None; raises ModelError if it is not a positive integer."""
    found = next((one for one in values if one is not None), None)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ModelError(f"{name}: tokens_per_sample must be a whole number above 0, is {found!r}")
    return found


def evident_tokens(inputs: Sequence[Tensor]) -> int | None:
    """The length of the sequences if all inputs are integers [batch, length].

    >>> evident_tokens((torch.zeros(2, 32, dtype=torch.long),))
    32
    >>> evident_tokens((torch.zeros(2, 32),)) is None
    True
    """
    shapes = {tuple(x.shape[1:]) for x in inputs}
    whole = all(not x.is_floating_point() and not x.is_complex() for x in inputs)
    if not whole or len(shapes) != 1 or torch.bool in {x.dtype for x in inputs}:
        return None
    (shape,) = shapes
    return int(shape[0]) if len(shape) == 1 and shape[0] > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module with inputs and loss.

    args     model inputs, dimension 0 is the batch
    targets  second argument of loss_fn, as the factory returned it (a tuple stays a tuple), or None
    call     runs the module: call(module, *args) -> output
    loss_fn  scalar loss of (output, targets): a mean over the batch, so that micro-batches average
    tensor_parallel  rules for the layers that tp splits
    tokens_per_sample  None if a sample is no sequence of tokens
    input_sizes  all sizes of the inputs except the batch
    assumptions  about a factory's model, and changes to it
    """

    module: nn.Module
    args: tuple[Tensor, ...]
    targets: Any
    call: Callable[..., Any]
    loss_fn: Loss
    tensor_parallel: tuple[Rule, ...] = ()
    tokens_per_sample: int | None = None
    input_sizes: frozenset[int] = frozenset()
    assumptions: tuple[str, ...] = ()


def build_model(
    spec: ModelSpec,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str = "float32",
    device: str = "meta",
    seed: int = 0,
) -> BuiltModel:
    """The module of `spec` with inputs of `micro_batch` samples.

    device  `meta` builds only shapes; `cpu` and `cuda` create weights from `seed`

    Dropout is off, so that split and unsplit runs agree. Models without a sequence length ignore
    it. Raises ModelError, with the model's source, if it cannot be built.
    """
    if micro_batch < 1 or sequence_length < 1:
        raise ModelError(
            f"micro-batch {micro_batch} and sequence length {sequence_length} must be 1 or more"
        )
    with doing(lambda: f"building {spec.source}"):
        if spec.factory:
            built = _from_factory(spec, micro_batch, dtype, device, seed)
        else:
            built = _from_config(spec, micro_batch, sequence_length, dtype, device, seed)
    _without_dropout(built.module)
    built.module.train()
    return built


def parameter_count(spec: ModelSpec, sequence_length: int) -> int:
    """The parameters of a model, shared ones once. Raises ModelError if it cannot be built."""
    built = build_model(spec, micro_batch=1, sequence_length=sequence_length)
    return sum(p.numel() for p in built.module.parameters())


def _without_dropout(module: nn.Module) -> None:
    """Set all dropout probabilities to 0: of dropout modules, and attributes of modules and their
    configurations for functional dropout (`attention_dropout`, `layerdrop`)."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
        for holder in (child, vars(child).get("config")):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, float) and "drop" in name.lower():
                    setattr(holder, name, 0.0)


def _from_factory(
    spec: ModelSpec, micro_batch: int, dtype: str, device: str, seed: int
) -> BuiltModel:
    factory = imported(spec.factory)
    made = _called(factory, spec.factory, device, seed)
    wanted = "(module, inputs) or (module, inputs, targets, loss_fn[, tokens_per_sample])"
    if not isinstance(made, tuple) or len(made) not in (2, 4, 5):
        raise ModelError(f"{spec.factory}() must return {wanted}, returned {type(made).__name__}")
    module, inputs = made[0], made[1]
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{spec.factory}() must return {wanted}; its first value is no torch module but a "
            f"{type(module).__name__}"
        )
    module, eager = _eager(module)
    call, inputs = _call_of(module, inputs)
    if not inputs:
        raise ModelError(
            f"{spec.factory}(): inputs must be a tensor, a tuple of arguments, or a dictionary of "
            "arguments by name; tensors may be nested in tuples, lists and dictionaries"
        )
    targets, loss_fn = (made[2], made[3]) if len(made) > 2 else (None, None)
    if loss_fn is not None and not callable(loss_fn):
        raise ModelError(
            f"{spec.factory}() must return {wanted}; the fourth, loss_fn, is no function but "
            f"{type(loss_fn).__name__}"
        )
    tokens = stated_tokens(
        spec.factory,
        made[4] if len(made) == 5 else None,
        getattr(factory, "tokens_per_sample", None),
        getattr(module, "tokens_per_sample", None),
    )
    assumptions = [_ASSUMED_LOSS] if loss_fn is None else []
    assumptions += [_NO_CACHE] if _without_cache(module) else []
    assumptions += [] if eager else [_EAGER]
    if tokens is None and (tokens := evident_tokens(inputs)) is not None:
        assumptions.append(
            f"a sample is {tokens} tokens: the inputs are whole numbers [batch, {tokens}] "
            "(tokens_per_sample of the factory)"
        )
    batches = {x.shape[0] if x.dim() else 0 for x in inputs}
    if len(batches) != 1 or 0 in batches:
        raise ModelError(
            f"{spec.factory}(): dimension 0 of every input must be the batch; the inputs have "
            f"shapes {[tuple(x.shape) for x in inputs]}. Register tensors that all samples share "
            "as buffers of the module; give graphs of equal size as [batch, nodes, features] and "
            "[batch, edges, 2], and join them in the forward"
        )
    own = batches.pop()
    kind = getattr(torch, dtype)
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"{spec.factory}(): {name or 'the module'} is a torch.jit script, whose ops cannot "
                "be traced; return the original module"
            )
    refuse_lazy(module, spec.factory)
    # `module.to` would make complex weights real.
    module._apply(lambda x: x.to(kind) if x.is_floating_point() else x)
    return BuiltModel(
        module=module,
        # Constants of the user's Python module may be on another device.
        args=tuple(_rebatched(x, own, micro_batch, kind).to(device) for x in inputs),
        targets=tree_map_only(
            Tensor, lambda x: x.to(device), _rebatched_tree(targets, own, micro_batch, kind)
        ),
        call=call,
        loss_fn=loss_fn or assumed_loss,
        tokens_per_sample=tokens,
        input_sizes=frozenset(size for x in inputs for size in x.shape[1:]),
        assumptions=tuple(assumptions),
    )


def _call_of(module: nn.Module, inputs: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """How to call a module on the tensors of a factory's inputs, and these tensors.

    A dictionary has arguments by name, or is the only argument if the forward has no arguments of
    these names.
    """
    named = isinstance(inputs, dict)
    if named:
        accepted = inspect.signature(module.forward).parameters
        any_name = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        named = any_name or set(inputs) <= set(accepted)
    whole = ((), inputs) if named else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    leaves, form = tree_flatten(whole)
    constants = [None if isinstance(x, Tensor) else (x,) for x in leaves]

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        following = iter(tensors)
        filled = [next(following) if constant is None else constant[0] for constant in constants]
        args, kwargs = tree_unflatten(filled, form)
        return module(*args, **kwargs)

    return call, tuple(x for x in leaves if isinstance(x, Tensor))


def imported(factory: str) -> Callable[..., Any]:
    """The function `package.module:function`; raises ModelError if there is none."""
    module_name, _, function = factory.partition(":")
    if not module_name or not function:
        raise ModelError(f"factory {factory!r} must be package.module:function")
    try:
        found = getattr(importlib.import_module(module_name), function)
    except AttributeError as error:
        raise ModelError(f"{factory}: {module_name} has no {function!r}") from error
    except Exception as error:
        raise ModelError(
            f"{factory}: cannot import {module_name!r}: {type(error).__name__}: {error}. The "
            f"current folder is {'on' if '' in sys.path or '.' in sys.path else 'not on'} the "
            "import path."
        ) from error
    if not callable(found):
        raise ModelError(f"{factory}: is a {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return] # the user's


def refuse_lazy(module: nn.Module, factory: str) -> None:
    """Raises ModelError for a parameter without a shape."""
    for name, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ModelError(
                f"{factory}(): {name} has no shape yet; call the module once on an input in "
                "the factory, or give its sizes"
            )


_DRAWING: set[Any] = {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_}
_DRAWING |= {nn.init.kaiming_uniform_, nn.init.kaiming_normal_}


class _Device(DeviceContext):
    """`torch.device(device)`. On meta no numbers are drawn, which would be half of a build."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        x: Any = args[0] if args else (kwargs or {}).get("tensor")
        if func in _DRAWING and x.is_meta:
            return x
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call] # torch's


def _called(factory: Callable[[], Any], name: str, device: str, seed: int) -> Any:
    """The result of a factory. If it needs values of weights on meta (an orthogonal layer does), it
    is called on the CPU, and the values are removed."""
    torch.manual_seed(seed)
    try:
        with _Device(device):
            return factory()
    except Exception as error:
        if device != "meta" or not needs_values(error):
            raise ModelError(f"{name}() failed: {type(error).__name__}: {error}") from error
    made = _called(factory, name, "cpu", seed)
    if isinstance(made, tuple) and made and isinstance(made[0], nn.Module):
        to_meta(made[0], buffers=True)
    return made


def needs_values(error: Exception) -> bool:
    """Whether an error of torch (2.13) is about a meta tensor without values."""
    return "meta" in str(error).lower()


def to_meta(
    module: nn.Module,
    *,
    buffers: bool,
    convert: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> None:
    """Remove the values of a module's parameters and buffers; shared tensors stay shared.

    convert  creates the tensor without values, from a module and one of its tensors
    """
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for child in module.modules():
        for table in (child._parameters, child._buffers) if buffers else (child._parameters,):
            for name, x in table.items():
                if x is None:
                    continue
                if id(x) not in made:
                    empty = x.detach().to("meta") if convert is None else convert(child, x)
                    if isinstance(x, nn.Parameter):
                        empty = nn.Parameter(empty, requires_grad=x.requires_grad)
                    made[id(x)] = (x, empty)
                table[name] = made[id(x)][1]  # type: ignore[assignment] # of the same type


def _eager(module: nn.Module) -> tuple[nn.Module, bool]:
    """The module after torch.compile is removed from it and its parts, and whether none was
    found."""
    eager = not hasattr(module, "_orig_mod")
    module = getattr(module, "_orig_mod", module)
    for part in module.modules():
        eager = eager and part._compiled_call_impl is None
        part._compiled_call_impl = None
        for name, child in part._modules.items():
            eager = eager and not hasattr(child, "_orig_mod")
            part._modules[name] = getattr(child, "_orig_mod", child)
    return module, eager


_EAGER = "torch.compile of the model is left out: `run --compile` compiles each unit of a stage"
_ASSUMED_LOSS = (
    "the loss is the model's own where its output has `loss` or the only number, else the mean "
    "square of the outputs (the factory's third and fourth value)"
)


_NO_CACHE = (
    "the model keeps no key-value cache: training needs none, and `config.use_cache` is set to "
    "False where the factory leaves it on"
)


def _without_cache(module: nn.Module) -> bool:
    """Set `use_cache` of the modules' configurations to False; returns whether any was True. With a
    cache, recomputing a layer would append to it twice."""
    configs = [vars(child).get("config") for child in module.modules()]
    on = [config for config in configs if getattr(config, "use_cache", False) is True]
    for config in on:
        config.use_cache = False  # type: ignore[union-attr] # it has the attribute
    return bool(on)


def _rebatched(x: Tensor, own: int, micro_batch: int, kind: torch.dtype) -> Tensor:
    if x.is_floating_point():
        x = x.to(kind)
    index = torch.arange(micro_batch) % own
    return x.index_select(0, index.to(x.device))


def _rebatched_tree(targets: Any, own: int, micro_batch: int, kind: torch.dtype) -> Any:
    if isinstance(targets, Tensor):
        same = targets.dim() > 0 and targets.shape[0] == own
        return _rebatched(targets, own, micro_batch, kind) if same else targets
    return tree_map_only(Tensor, lambda x: _rebatched_tree(x, own, micro_batch, kind), targets)


def _from_config(
    spec: ModelSpec, micro_batch: int, sequence_length: int, dtype: str, device: str, seed: int
) -> BuiltModel:
    config, cls = _config_and_class(spec)
    if getattr(config, "attention_type", "") == "block_sparse":
        # BigBird makes this change in its first forward pass, and then has other modules.
        least = (5 + 2 * config.num_random_blocks) * config.block_size
        config.attention_type = "original_full" if sequence_length <= least else "block_sparse"
    kind = getattr(torch, dtype)
    torch.manual_seed(seed)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with _Device(device):
            module = cls(config)
    except Exception as error:
        raise _not_built(spec, cls, error) from error
    finally:
        torch.set_default_dtype(previous)
    generator = torch.Generator().manual_seed(seed)
    try:
        fed = feed_of(
            module,
            config,
            spec.family,
            Feed(
                batch=micro_batch,
                length=sequence_length,
                kind=kind,
                device=device,
                generator=generator,
            ),
        )
    except (AttributeError, RuntimeError) as error:
        raise ModelError(
            f"{spec.source}: inputs for {cls.__name__} cannot be made from this configuration: "
            f"{error}; check its sizes, or use package.module:factory, which returns the inputs too"
        ) from error
    except ModelError as error:
        raise ModelError(f"{spec.source}: {error}") from error
    limit = getattr(config, "max_position_embeddings", 0) or position_count(spec.config)
    text = spec.family in _TEXT and fed.tokens_per_sample is not None
    if text and 0 < int(limit or 0) < sequence_length:
        raise ModelError(
            f"{spec.source}: --seq {sequence_length} is above the model's {limit} positions; use "
            f"{limit} or less"
        )
    return BuiltModel(
        module=module,
        args=fed.args,
        targets=fed.targets,
        call=fed.call,
        loss_fn=fed.loss_fn,
        tokens_per_sample=fed.tokens_per_sample,
    )


def _config_and_class(spec: ModelSpec) -> tuple[Any, Any]:
    model_type = str(spec.config["model_type"])
    name = str(spec.config["architectures"][0])
    need_to_build(spec)
    _quiet_transformers()
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    cls = None
    with suppress(ImportError):
        # `data2vec-audio` is in the folder data2vec, `gemma3_text` in gemma3.
        folder = f"transformers.models.{model_type_to_module_name(model_type)}"
        classes = importlib.import_module(folder)
        cls = getattr(classes, name, None) or _only_class(classes, name)
    if cls is None:
        raise ModelError(
            f"{spec.source}: transformers has no {name} for model_type {model_type!r}; check both "
            "against the model's card, or use package.module:factory"
        )
    values = {key: value for key, value in spec.config.items() if key != "model_type"}
    # No key-value cache in training; random masks of audio would make split and unsplit runs
    # differ.
    values |= {"use_cache": False}
    try:
        config = cls.config_class(**_decoded(values))
    except Exception as error:
        raise _not_built(spec, cls, error) from error
    if hasattr(config, "apply_spec_augment"):
        config.apply_spec_augment = False
    if getattr(cls, "_supports_sdpa", False):
        config._attn_implementation = "sdpa"
    return config, cls


def _decoded(value: Any) -> Any:
    """The value, with transformers' `{"__float__": "Infinity"}` as numbers."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list) else value


def _quiet_transformers() -> None:
    """Hide notes of transformers, such as those about missing CUDA kernels, which are no errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # untyped there


def _only_class(file: Any, end: str) -> Any:
    """The only class of a module whose name has this ending, or None."""
    names = [name for name in getattr(file, "__all__", ()) if name.endswith(end)]
    return getattr(file, names[0]) if len(names) == 1 else None


def _not_built(spec: ModelSpec, cls: Any, error: Exception) -> ModelError:
    return ModelError(
        f"{spec.source}: {cls.__name__} cannot be built from this configuration: "
        f"{type(error).__name__}: {error}"
    )


_TEXT = ("causal", "masked", "sequence", "tokens", "spans", OWN_LOSS)
