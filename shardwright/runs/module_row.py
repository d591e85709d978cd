"""`ModuleSetting`: a row of a table of modules with all defaults filled in, as a plan of blocks on
one device (or a few replicas).

A plan of our executor is one case of it (`as_planned`); a row may also name an old release of
torch, a compiler, a layout, an optimizer or a kind of autocast that our executor does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from profiles.document import content_hash
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster, get_device, node_design
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.model.graph import ModelGraph
from profiles.model.steps.module_step import StepPrecision, step_precision
from shardwright.runs.module_table import ModuleRow
from simulator.traced.kernel_constants import seconds_by_kind
from simulator.traced.kernel_seconds import seconds_in_step
from simulator.traced.predict import predict
from simulator.training_run.framework.executor_states import (
    ExecutorStates,
    OptimizerBytes,
    PrecisionBytes,
    Software,
)
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

_LAYOUTS = {"": False, "nchw": False, "contiguous": False, "channels_first": False}
_LAYOUTS |= {"nhwc": True, "channels_last": True}
_ELEMENT_BYTES = 4  # of a weight or a state in float32
_ZEROED = 4  # numbers read or written per weight to zero a gradient and to add to it
_FIRST_NEW_RELEASE = (1, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """An optimizer's update of float32 weights.

    states    numbers kept per weight
    moved     numbers read and written per weight and update
    kernels   launched per parameter; 0 if one kernel updates many parameters
    """

    name: str
    states: int
    moved: int
    kernels: int


# Counted in torch 1.12 (torch/optim/*.py, the single-tensor functions): every line of the update is
# a kernel. SGD with momentum: buf *= m; buf += g; p -= lr buf; Nesterov also computes g + m buf.
# Fused kernels read gradient, weight and states and write weight and states once (apex,
# csrc/multi_tensor_*.cu).
_NONE = OptimizerKind(name="none", states=0, moved=0, kernels=0)
# LAMB updates once per batch of tens of thousands (You et al., arXiv 1904.00962): published steps
# are single micro-batches, without an update.
_LAMB = OptimizerKind(name="lamb", states=2, moved=0, kernels=0)
_LAMB_NOTE = "LAMB's update is shared by many micro-batches: not counted in the step"
_PLAIN = {
    "sgd": OptimizerKind(name="sgd", states=0, moved=3, kernels=1),
    "momentum": OptimizerKind(name="sgd with momentum", states=1, moved=8, kernels=3),
    "nesterov": OptimizerKind(name="sgd with Nesterov momentum", states=1, moved=11, kernels=4),
    "adam": OptimizerKind(name="adam", states=2, moved=19, kernels=8),
    "rmsprop": OptimizerKind(name="rmsprop", states=2, moved=17, kernels=6),
    "adagrad": OptimizerKind(name="adagrad", states=1, moved=12, kernels=5),
}
_FUSED_MOVED = {"sgd": 3, "momentum": 5, "nesterov": 5, "adam": 7, "rmsprop": 7}


def optimizer_kind(text: str, *, together: bool) -> tuple[OptimizerKind, str]:
    """The optimizer named in the text, and the assumption made for it ("" for none).

    together  the framework updates many parameters in one kernel by default
              (torch from 2.0 on: `foreach`)
    """
    words = text.lower()
    if re.match(r"\s*(none|no optimizer)\b", words):
        return _NONE, ""
    if "lamb" in words:
        return _LAMB, _LAMB_NOTE
    taken = ""
    name = next((name for name in ("rmsprop", "adagrad", "adam") if name in words), "")
    if not name and "sgd" in words:
        name = "nesterov" if "nesterov" in words else "momentum" if "momentum" in words else "sgd"
        if re.search(r"momentum\s*=?\s*0(\.0*)?(\s|$)", words):
            name = "sgd"
    if not name:
        what = f"optimizer {text!r} is not known" if words.strip() else "no optimizer is named"
        name, taken = "adam", f"{what}: taken as Adam"
    found = _PLAIN[name]
    if "fused" in words or "apex" in words or (together and "foreach=false" not in words):
        moved = _FUSED_MOVED.get(name, found.moved) if "fused" in words else found.moved
        found = OptimizerKind(name=found.name, states=found.states, moved=moved, kernels=0)
    return found, taken


_RELEASE = re.compile(r"(?:torch|pytorch)\s*(?:ngc\s*[\d.]+\s*\()?v?(\d+)\.(\d+)", re.IGNORECASE)
_ANY_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?a0")
_DEFAULT = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFramework:
    """A release of torch, with the properties that affect a step.

    release     (major, minor)
    compiled    ops are compiled to graphs, so that the host launches few of them
    fused_attention   F.scaled_dot_product_attention is one kernel
    """

    release: tuple[int, int]
    compiled: bool
    fused_attention: bool

    @property
    def keeps_gradients(self) -> bool:
        """Whether zero_grad fills gradients with zeros, and the backward adds to them: torch before
        2.0 (release notes of 2.0: `set_to_none=True` is the default)."""
        return self.release < (2, 0)

    @property
    def software(self) -> Software:
        """The kind of software, which determines the host's costs."""
        if self.compiled:
            return Software.COMPILED
        return Software.OLD_TORCH if self.release < _FIRST_NEW_RELEASE else Software.TORCH

    @property
    def together(self) -> bool:
        """Whether optimizers update many parameters in one kernel (torch 2.0 release notes:
        `foreach` by default on CUDA)."""
        return self.release >= (2, 0)


def module_framework(text: str) -> tuple[ModuleFramework, str]:
    """The framework named in the text, and the assumption made ("" for none).

    Attention is assumed fused only if the text names it (`sdpa`, `flash`, `fused attention`):
    published steps name torch but not the kernel, and all measured so far stored the scores.
    """
    words = text.lower()
    match = _RELEASE.search(words) or _ANY_RELEASE.search(words)
    taken = []
    release = (int(match[1]), int(match[2])) if match else _DEFAULT
    compiled = any(word in words for word in ("compile", "inductor", "habana", "graph"))
    if not match and not compiled:
        what = f"framework {text!r} names no release" if words.strip() else "no framework is named"
        taken.append(f"{what}: taken as torch {_DEFAULT[0]}.{_DEFAULT[1]} eager")
    fused = any(word in words for word in ("sdpa", "flash", "fused attention"))
    found = ModuleFramework(release=release, compiled=compiled, fused_attention=fused)
    return found, "; ".join(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSetting:
    """A row of a table of modules with all values filled in.

    defaults  assumptions for missing values
    """

    device: Device
    devices: int
    precision: StepPrecision
    channels_last: bool
    framework: ModuleFramework
    optimizer: OptimizerKind
    defaults: tuple[str, ...] = ()

    @property
    def as_planned(self) -> bool:
        """Whether our executor can run the row as a plan."""
        work, framework = self.precision, self.framework
        plain = framework.software is Software.TORCH and framework.fused_attention
        return (
            plain
            and framework.together
            and self.devices == 1
            and not (self.channels_last or work.autocast or work.tf32)
            and self.optimizer.name == "adam"
        )

    @property
    def cluster(self) -> Cluster:
        """The row's devices as a cluster of one node."""
        return get_cluster(f"1x{self.devices}x{self.device.name}")

    @property
    def workload_precision(self) -> str:
        """Precision of the arithmetic; fp32 if the device has no rate for it."""
        kind = self.precision.autocast or self.precision.weights
        known = {"float16": "fp16", "bfloat16": "bf16"}.get(kind, "fp32")
        return known if kind in self.device.peak_flop_per_s else "fp32"

    @property
    def states(self) -> ExecutorStates:
        """Bytes per parameter that the step keeps and moves."""
        halves = self.precision.weights in ("float16", "bfloat16")
        states = self.optimizer.states
        # With weights of 16 bits an optimizer keeps a copy of them in float32.
        kept = _ELEMENT_BYTES * (states + (1 if halves and states else 0))
        moved = self.optimizer.moved + (_ZEROED if self.framework.keeps_gradients else 0)
        weight = 2.0 if halves else 4.0
        sizes = PrecisionBytes(parameter_bytes=weight, working_copy_bytes=0, gradient_bytes=weight)
        traffic = float(_ELEMENT_BYTES * moved)
        return ExecutorStates(
            date="",
            source="",
            fp32=sizes,
            bf16=sizes,
            fp16=sizes,
            optimizer_bytes=OptimizerBytes(adamw=kept, sgd=kept),
            optimizer_traffic_bytes=OptimizerBytes(adamw=traffic, sgd=traffic),
            software=self.framework.software,
            optimizer_kernels=self.optimizer.kernels,
            overlapped=True,
        )


def module_setting(row: ModuleRow) -> ModuleSetting:
    """The row with all values filled in. Raises UnknownNameError for an unknown device, precision
    or layout, InputError for an unreadable cell."""
    if row.faults:
        raise InputError("; ".join(row.faults))
    defaults = []
    if not row.precision:
        defaults.append("no precision is named: taken as fp32")
    if row.memory_format.lower() not in _LAYOUTS:
        raise InputError(
            f"memory_format {row.memory_format!r} is not known; use nchw or nhwc (channels_last)"
        )
    framework, taken = module_framework(row.framework)
    defaults += [taken] if taken else []
    optimizer, taken = optimizer_kind(row.optimizer, together=framework.together)
    defaults += [taken] if taken else []
    device = get_device(row.device)
    if device.type == "cpu":
        raise InputError(f"{row.device} is a CPU; modules are predicted on accelerators")
    if row.devices > 1:
        link = node_design(device.name).inner_link
        defaults.append(f"gradients are summed over {link} during the backward")
    return ModuleSetting(
        device=device,
        devices=row.devices,
        precision=step_precision(row.precision or "fp32"),
        channels_last=_LAYOUTS[row.memory_format.lower()],
        framework=framework,
        optimizer=optimizer,
        defaults=tuple(defaults),
    )


@dataclass(slots=True)
class _OneStep:
    """A traced step with the interface of a traced model that `predict` uses."""

    graph: ModelGraph
    content_hash: str = ""

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        return self.graph


def predict_step(graph: ModelGraph, setting: ModuleSetting) -> Prediction:
    """The prediction of a traced step of a module on the row's devices, with one batch on each."""
    work = Workload(
        global_batch=graph.micro_batch * setting.devices,
        sequence_length=1,
        precision=setting.workload_precision,
        counted_in="samples",
    )
    plan = one_stage_plan(graph, "", setting.cluster, work)
    return predict(plan, _OneStep(graph), setting.cluster, stack=setting.states)


def one_stage_plan(graph: ModelGraph, model_hash: str, cluster: Cluster, work: Workload) -> Plan:
    """The plan of an unsplit step: every device has the whole model and one batch."""
    count = len(graph.chain)
    stage = Stage(first_block=0, last_block=count, recompute=(Recompute.NONE,) * count)
    return Plan(
        model=graph.source,
        model_hash=model_hash,
        block_entries=tuple(ref.entry for ref in graph.chain),
        cluster=cluster.name,
        cluster_hash=content_hash(cluster),
        workload=work,
        degrees=Degrees(dp=cluster.num_devices),
        micro_batch=graph.micro_batch,
        schedule="1f1b",
        stages=(stage,),
    )


def unmeasured_shares(graph: ModelGraph, setting: ModuleSetting) -> Mapping[str, float]:
    """Kinds of kernels with too few steps in the fit, with their share of the kernels' time."""
    block, compiled = graph.kinds[0], setting.framework.compiled
    ops = (*block.forward_ops, *block.backward_ops)
    kernels = [kernel for op in ops for kernel in op.kernels or ()]
    seconds, unknown = seconds_in_step(kernels, setting.device, compiled=compiled)
    pairs = [(k, s) for k, s, flag in zip(kernels, seconds, unknown, strict=True) if flag]
    by_kind = seconds_by_kind(pairs)
    return {kind: taken / float(seconds.sum()) for kind, taken in sorted(by_kind.items())}
