"""`RunOption`: choices of a layout in addition to its mesh, as one axis of the space.

A request without options has a single value, the unchanged run, which costs the search nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.device import PRECISION_TYPES, Device
from simulator.training_run.framework.framework import FrameworkRules
from simulator.training_run.framework.run_conditions import BLOCK_SCALED, LOW_PRECISIONS
from simulator.training_run.run.low_bits import FROZEN_TYPES, MUON, USUAL_OPTIMIZER, moments_bytes
from simulator.training_run.run.training_run import REDUCTIONS, Lengths, TrainingRun, compression_of
from simulator.values.degrees import AXIS_ORDERS

# MX formats and NVFP4 came with the same tensor cores (NVIDIA Blackwell architecture brief, 2024;
# AMD CDNA 4 white paper, 2025): a device without an FP4 rate has no block-scaled formats.
_FP4 = PRECISION_TYPES["nvfp4"]
# Narrowest first; among equal widths, the faster ones first.
_BY_WIDTH = ("nvfp4", "mxfp8", "fp8", "int8", "bf16", "fp16", "fp32")
ANY = "any"
EVERY_REPLICA = 0
# Options that change the numerics of the training.
_NUMERICS: tuple[str, ...] = ("bf16-reduce", "compression", "local-steps", "low-bit-weights")
_NUMERICS += ("8-bit-states", "4-bit-states", "muon")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """Values for fields of `TrainingRun`. An empty precision means the precision of the request;
    local_workers may be EVERY_REPLICA."""

    precision: str = ""
    axis_order: str = AXIS_ORDERS[0]
    dp_replicate: int = 1
    torus: tuple[int, ...] = ()
    gradient_reduction: str = ""
    compression: str = ""
    local_steps: int = 1
    local_workers: int = 1
    wide_layers: int = 0
    optimizer_offload: bool = False
    sequence_parallel: bool = False
    activation_offload: float = 0.0
    frozen_type: str = ""
    optimizer: str = USUAL_OPTIMIZER

    def applied(self, run: TrainingRun) -> TrainingRun:
        """The run with this option; precision and torus change only if the option sets them."""
        if self == _NONE:
            return run
        return replace(
            run,
            precision=self.precision or run.precision,
            degrees=replace(
                run.degrees, axis_order=self.axis_order, dp_replicate=self.dp_replicate
            ),
            torus=self.torus or run.torus,
            local_workers=self.local_workers or run.degrees.dp,
            sequence_parallel=self.sequence_parallel or run.sequence_parallel,
            **{name: getattr(self, name) for name in _ALIKE},
        )

    def sensible(self, *, pp: int, dp: int, tp: int, cp: int, ep: int, tokens: int) -> bool:
        """Whether the option applies to the mesh and changes it. An order of axes needs two axes
        above 1; a type of gradient reduction needs replicas; hybrid sharding needs groups of two or
        more; sequence parallelism needs tensor-parallel ranks with equal shares of the tokens."""
        if self.sequence_parallel and (tp == 1 or tokens % tp):
            return False
        usual = self.axis_order == AXIS_ORDERS[0]
        if not usual and (pp == 1 or dp == 1):
            return False
        if (self.gradient_reduction or self.compression) and dp * cp == 1:
            return False
        if self.local_steps > 1 and dp == 1:
            return False
        groups = self.dp_replicate
        if groups > 1 and (dp % groups or dp == groups or tp * cp * (dp // groups) % ep):
            return False
        return self.local_workers == EVERY_REPLICA or dp % self.local_workers == 0

    def allowed(self, *, pp: int, zero_stage: int, recompute: str, rules: FrameworkRules) -> bool:
        """Whether the framework and the ZeRO stage permit the option. Compression needs whole
        gradients, which ZeRO 2 and 3 do not have. Replicas with local steps share no states. Hybrid
        sharding needs sharded states, and is not modeled together with compression or local steps.
        FSDP moves only sharded states to host memory."""
        if self.compression and zero_stage > 1:
            return False
        if self.local_workers == EVERY_REPLICA and zero_stage:
            return False
        others = self.compression or self.local_workers != 1
        if self.dp_replicate > 1 and (not zero_stage or others):
            return False
        if self.optimizer_offload and rules.offloads_shards and not zero_stage:
            return False
        if not self.activation_offload:
            return True
        if "pipeline" in rules.activation_offload_without and pp > 1:
            return False
        return "recompute" not in rules.activation_offload_without or recompute == "none"


_NONE = RunOption()
# Fields that are copied to the run unchanged.
_ALIKE: tuple[str, ...] = ("gradient_reduction", "compression", "local_steps", "wide_layers")
_ALIKE += ("optimizer_offload", "activation_offload", "frozen_type", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOptions:
    """Options of a request in addition to the axes; () leaves a choice to the framework.

    precisions    to choose from, or `any`
    orders        of axes (axis_order.AXIS_ORDERS), or `any`
    reductions    of gradients between replicas: `fp32`, `bf16`
    compressions  `powersgd-R`, `topk-S`, `none`
    local_steps   numbers of steps between exchanges, 1 for every step
    local_workers number of groups of replicas that take local steps; 0: one per outermost part of
    the machine, or every replica if it has no parts
    wide_layers   number of first, and of last, layers in bf16 if the rest is in a lower precision
    optimizer_offload   states of the usual optimizer may be in host memory
    sequence_parallel   tensor-parallel ranks share the tokens between their layers; None: the
                  search decides, where the framework has the option and the model allows it
    activation_offloads  shares (0 to 1) of saved activations that may be in host memory
    frozen_type   `nf4`, `int8`: storage type of frozen weights
    optimizer     of low_bits.OPTIMIZERS
    expert_imbalance  tokens of the fullest expert-parallel rank over the mean
    pipeline_layout  Megatron's text for the virtual stages; "" for the framework's own split
    documents     lengths of the documents packed into a sequence, with their numbers or shares; ()
                  for attention over the whole sequence
    """

    precisions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    reductions: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    local_steps: tuple[int, ...] = ()
    local_workers: int = 0
    wide_layers: int = 0
    optimizer_offload: bool = False
    sequence_parallel: bool | None = None
    activation_offloads: tuple[float, ...] = ()
    frozen_type: str = ""
    optimizer: str = USUAL_OPTIMIZER
    expert_imbalance: float = 1.0
    documents: Lengths = ()
    pipeline_layout: str = ""

    def __post_init__(self) -> None:
        moments_bytes(self.optimizer)
        for kind, flag, names, known, more in (
            ("type of frozen weights", "--base-precision", (self.frozen_type,), FROZEN_TYPES, ""),
            ("precision", "--precision", self.precisions, PRECISION_TYPES, ANY),
            ("order", "--order", self.orders, AXIS_ORDERS, ANY),
            ("reduction", "--reduce", self.reductions, REDUCTIONS, None),
        ):
            for name in names:
                if name not in known and name != more:
                    raise UnknownNameError(kind, name, known, where=flag)
        for name in self.compressions:
            if name != "none":
                try:
                    compression_of(name)
                except InputError as error:
                    raise InputError(f"--compress: {error}") from error
        for flag, value, least in (
            ("--local-steps", min(self.local_steps, default=1), 1),
            ("--local-workers", self.local_workers or 2, 2),
            ("--wide-layers", self.wide_layers, 0),
        ):
            if value < least:
                raise InputError(f"{flag} must be {least} or more, got {value}")
        if any(not 0 <= share <= 1 for share in self.activation_offloads):
            raise InputError(
                "--activation-offload takes shares of the saved activations from 0 to 1, got "
                + ",".join(f"{share:g}" for share in self.activation_offloads)
            )

        if not 1.0 <= self.expert_imbalance < math.inf:
            raise InputError(
                f"--expert-imbalance {self.expert_imbalance:g}: the fullest rank's tokens over the "
                "mean of the ranks must be 1 (balanced) or more; write 1.2"
            )

    @property
    def offloads(self) -> bool:
        """Whether optimizer states may be in host memory; only fp32 states are modeled there."""
        return self.optimizer_offload and self.optimizer == USUAL_OPTIMIZER

    @property
    def words(self) -> tuple[str, ...]:
        """The options as flags; a single precision is left out, because the request prints it."""
        given = {
            "--precision": self.precisions if len(self.precisions) > 1 else (),
            "--order": self.orders,
            "--reduce": self.reductions,
            "--compress": self.compressions,
            "--local-steps": self.local_steps,
            "--local-workers": (self.local_workers or "",),
            "--wide-layers": (self.wide_layers or "",),
            "--activation-offload": tuple(f"{share:g}" for share in self.activation_offloads),
            "--base-precision": (self.frozen_type,),
            "--optimizer": (self.optimizer if self.optimizer != USUAL_OPTIMIZER else "",),
            "--expert-imbalance": (
                f"{self.expert_imbalance:g}" if self.expert_imbalance > 1 else "",
            ),
            "--pipeline-layout": (self.pipeline_layout,),
            "--lengths": tuple(f"{length}:{number:g}" for length, number in self.documents),
        }
        texts = {flag: ",".join(map(str, values)) for flag, values in given.items()}
        flags = tuple(f"{flag} {text}" for flag, text in texts.items() if text)
        switches = {
            "--optimizer-offload": self.optimizer_offload,
            "--sequence-parallel": bool(self.sequence_parallel),
        }
        return flags + tuple(flag for flag, on in switches.items() if on)


def run_options(
    requested: RequestedOptions,
    base: TrainingRun,
    rules: FrameworkRules,
    device: Device,
    *,
    dp_replicate: Sequence[int] = (1,),
) -> tuple[RunOption, ...]:
    """The options to search for a framework on a device, the framework's defaults first.

    Raises InputError for a precision that the device or the framework does not have.
    """
    far, workers = base.far_levels, requested.local_workers
    if not workers and far:
        workers = -(-base.degrees.num_devices // far[-1].part_devices)
    compressions = tuple(name if name != "none" else "" for name in requested.compressions)
    choice = requested.sequence_parallel is None and "sequence-parallel" in rules.offers
    may_share = choice and not base.model.whole_tokens
    choices: dict[str, Sequence[Any]] = {
        "precision": _precisions(requested, base, rules, device),
        "axis_order": _orders(requested.orders, rules, several_levels=bool(far)),
        "dp_replicate": dp_replicate,
        "torus": _turned(base.torus),
        "gradient_reduction": requested.reductions or ("",),
        "compression": compressions or ("",),
        "local_steps": requested.local_steps or (1,),
        "optimizer_offload": (False, True) if requested.offloads else (False,),
        "sequence_parallel": (False, True)[: 1 + may_share],
        "activation_offload": requested.activation_offloads or (0.0,),
    }
    found = []
    for values in itertools.product(*choices.values()):
        option = RunOption(
            frozen_type=requested.frozen_type,
            optimizer=requested.optimizer,
            **dict(zip(choices, values, strict=True)),
        )
        low = (option.precision or base.precision) in LOW_PRECISIONS
        found.append(
            replace(
                option,
                local_workers=1 if option.local_steps == 1 else workers,
                wide_layers=requested.wide_layers if low else 0,
            )
        )
    return tuple(dict.fromkeys(found))


def unoffered(requested: RequestedOptions, rules: FrameworkRules, *, hybrid: bool) -> list[str]:
    """Sentences on options that the framework does not have, or that change the numerics."""
    wanted = {
        "bf16-reduce": "bf16" in requested.reductions,
        "compression": any(name != "none" for name in requested.compressions),
        "local-steps": any(steps > 1 for steps in requested.local_steps),
        "wide-layers": requested.wide_layers > 0,
        "optimizer-offload": requested.offloads,
        "sequence-parallel": bool(requested.sequence_parallel) and not rules.sequence_parallel,
        "activation-offload": any(share > 0 for share in requested.activation_offloads),
        "low-bit-weights": bool(requested.frozen_type),
        "8-bit-states": requested.optimizer == "adamw8bit",
        "4-bit-states": requested.optimizer == "adamw4bit",
        "muon": requested.optimizer == MUON,
        "pipeline-layout": bool(requested.pipeline_layout),
        "hsdp": hybrid,
    }
    said = [
        f"{name}: {rules.name} has none of its own; priced as if it had"
        for name, asks in wanted.items()
        if asks and name not in rules.offers
    ]
    if requested.optimizer_offload and not requested.offloads:
        said.append(f"optimizer-offload: states of {requested.optimizer} stay on the device")
    numerics = [name for name in _NUMERICS if wanted[name]]
    if len(requested.precisions) > 1 or ANY in requested.precisions:
        numerics.append("precision")
    if numerics:
        said.append(
            f"{', '.join(numerics)}: changes what is computed, not only how fast; whether the "
            "model still learns as well is for you to judge"
        )
    return said


def _precisions(
    requested: RequestedOptions, base: TrainingRun, rules: FrameworkRules, device: Device
) -> tuple[str, ...]:
    """The precisions to choose from; ("",) if the request fixes one."""
    if not requested.precisions:
        _must_have(base.precision, rules, device)
        return ("",)
    if ANY in requested.precisions:
        # Wider types than the widest 16-bit one of both are never faster.
        narrow = ("bf16", *LOW_PRECISIONS)
        offered = [x for x in rules.precisions if x in narrow and _has(device, x)]
        return tuple(offered) or ("",)
    for name in requested.precisions:
        _must_have(name, rules, device)
    return requested.precisions


def _must_have(name: str, rules: FrameworkRules, device: Device) -> None:
    """Raises InputError for a precision that the device or the framework does not have."""
    if name not in PRECISION_TYPES:
        raise UnknownNameError("precision", name, PRECISION_TYPES, where="--precision")
    if _offered(name, rules, device):
        return
    narrow = [name for name in _BY_WIDTH if _offered(name, rules, device)]
    wider = [other for other in narrow if _BY_WIDTH.index(other) > _BY_WIDTH.index(name)]
    use = f"Use --precision {(wider or narrow[::-1])[0]}." if narrow else "Name another device."
    if not _has(device, name):
        runs = ", ".join(each for each in PRECISION_TYPES if _has(device, each))
        dtype = PRECISION_TYPES[name]
        missing = (
            f"block-scaled tensor cores (its file has no rate for {_FP4})"
            if dtype in device.peak_flop_per_s
            else f"rate for {dtype}"
        )
        raise InputError(
            f"--precision {name}: {device.name} has no {missing}, it runs {runs}. {use}"
        )
    raise InputError(
        f"--precision {name}: {rules.name} trains in {', '.join(rules.precisions)} (rules of its "
        f"framework file). {use}"
    )


def _offered(name: str, rules: FrameworkRules, device: Device) -> bool:
    """Whether the device and the framework have a precision."""
    return _has(device, name) and (name not in LOW_PRECISIONS or name in rules.precisions)


def _has(device: Device, precision: str) -> bool:
    if precision in BLOCK_SCALED and _FP4 not in device.peak_flop_per_s:
        return False
    return PRECISION_TYPES[precision] in device.peak_flop_per_s


def _orders(
    requested: tuple[str, ...], rules: FrameworkRules, *, several_levels: bool
) -> tuple[str, ...]:
    """The requested orders. Without a request, all orders of the framework on a machine of several
    network levels, otherwise its usual order, in which the coefficients were fitted."""
    if ANY in requested or (not requested and several_levels):
        return rules.orders
    for order in requested:
        if order not in rules.orders:
            raise InputError(
                f"--order {order}: {rules.name} numbers ranks as {', '.join(rules.orders)} "
                "(rules of its framework file). Name one of these, or leave it out"
            )
    return requested or rules.orders[:1]


def _turned(sides: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All ways to place the ranks on a torus; they differ in the innermost axis."""
    return tuple(sorted(set(itertools.permutations(sides)), reverse=True)) or ((),)
