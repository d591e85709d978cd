"""Least squares of modules' steps: the constants of simulator/traced/kernel_seconds.py, and of the
host around them (in_step.py), on measured rows; refits with rows left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.model.graph import ModelGraph
from profiles.model.kernels import DeviceKernel, Kernel
from shardwright.runs.module_row import ModuleSetting
from simulator.soft_maximum import larger
from simulator.traced.in_step import is_kernel_priced, optimizer_s, prices_in_step, starts
from simulator.traced.kernel_arrays import ARCHITECTURES, KernelArrays, kernel_arrays
from simulator.traced.kernel_seconds import KernelGroups, Values, group_seconds, grouped
from simulator.training_run.framework.executor_states import Software

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Columns = TypeVar("Columns", KernelArrays, "StepFacts")

_ERROR = 0.12  # of one row, in log: where Cauchy-like weights begin to fall
_PRIOR = 0.02  # weight of a constant's start against a row
_STEP = 1e-3  # of numerical derivatives, in log
_ITERATIONS = 8
_MOVING = ("softmax", "reduction", "copy", "transpose", "gather", "scatter", "fill", "elementwise")


def begin_of() -> dict[str, tuple[float, float]]:
    """Of every constant where the fit begins, and how far (in log) it looks."""
    found: dict[str, tuple[float, float]] = {}

    def add(value: float, *names: str, width: float = 0.5) -> None:
        found.update(dict.fromkeys(names, (value, width)))

    directions = ("output", "input", "weight")
    passes = ("forward", "backward")
    layouts = ("channels_first", "channels_last")
    for name in ("conv_1x1", "conv", "grouped"):
        add(0.8, *(f"peak.{name}.{way}" for way in directions))
        add(1.0, f"reorder.{name}")
        add(1.0, f"peak.{name}.channels_last", width=0.4)
        add(0.6, *(f"bytes.{name}.{layout}" for layout in layouts))
    add(0.1, "peak.grouped.general", width=1.0)
    add(0.6, "peak.conv.direct")
    add(0.7, *(f"peak.matmul.{way}" for way in (*directions, "batched")))
    add(0.5, "peak.attention")
    add(1.2, "peak.float32")
    add(1.4, "peak.float32_sums", width=0.3)
    add(0.7, "peak.emulated")
    for unit, size in (("tensor", 40.0), ("float32", 20.0)):
        add(size, *(f"small.{side}.{unit}" for side in "mnk"))
    add(0.1, "fill")
    add(0.4, "cached")
    add(0.6, "bytes.matmul")
    for layout in layouts:
        add(0.4, *(f"depthwise.bytes.{layout}.{way}" for way in directions))
        add(0.2, *(f"depthwise.peak.{layout}.{way}" for way in directions))
        add(1.0, f"depthwise.strided.{layout}", f"depthwise.wide.{layout}")
        add(0.6, *(f"bytes.batch_norm.{layout}.{way}" for way in passes))
    for name in ("row_norm", "pool", "resize"):
        add(0.6, *(f"bytes.{name}.{way}" for way in passes))
    for name in _MOVING:
        add(0.75, f"bytes.{name}")
    add(0.1, "bytes.sort")
    add(0.3, "bytes.fft")
    add(3.0, "start_us")
    add(1000.0, "step_us")
    for name, us in (("forward", 20.0), ("backward", 12.0), ("view", 3.0), ("update", 12.0)):
        add(us, f"host.{name}.old_us", f"host.{name}.new_us")
    for name in ARCHITECTURES:
        parts = ("tensor", "float32", "memory")
        add(1.0, *(f"architecture.{name}.{part}" for part in parts), width=0.15)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What of a step is not its kernels; [steps] each.

    *_kernels, *_views   ops and views that the host starts in a pass
    *_known_s       device seconds of the pass that no constant of the fit is in (measured products)
    update_s        of the update's bytes;  update_kernels  of all parameters
    old, compiled   flags of the framework
    """

    forward_kernels: Array
    forward_views: Array
    forward_known_s: Array
    backward_kernels: Array
    backward_views: Array
    backward_known_s: Array
    update_s: Array
    update_kernels: Array
    old: Array
    compiled: Array


def step_facts(graph: ModelGraph, setting: ModuleSetting) -> StepFacts:
    """The facts of one step, as arrays of one."""
    (block,), states, device = graph.kinds, setting.states, setting.device
    weights = [p.spec.num_elements for p in block.parameters if p.trainable]
    found = {
        "update_s": optimizer_s(states.optimizer_traffic_bytes.adamw * sum(weights), device),
        "update_kernels": states.optimizer_kernels * len(weights),
        "old": setting.framework.software is Software.OLD_TORCH,
        "compiled": setting.framework.compiled,
    }
    for name, ops in (("forward", block.forward_ops), ("backward", block.backward_ops)):
        found[f"{name}_kernels"], found[f"{name}_views"] = starts(ops)
        known = [op for op in ops if not is_kernel_priced(op, device)]
        costs = prices_in_step(known, device, setting.framework.software)
        found[f"{name}_known_s"] = sum(cost.time_s for cost in costs)
    return StepFacts(**{name: np.asarray([float(x)]) for name, x in found.items()})


def total_s(facts: StepFacts, forward_s: Array, backward_s: Array, values: Values) -> Array:
    """Steps whose fitted kernels take so long in each pass, as `predict` adds them up."""
    eager = 1e-6 * (1.0 - facts.compiled)

    def host(name: str) -> Array:
        old, new = values[f"host.{name}.old_us"], values[f"host.{name}.new_us"]
        return np.where(facts.old > 0, old, new) * eager

    views = host("view")
    update = facts.update_s + 1e-6 * values["start_us"] * facts.update_kernels
    return (
        larger(
            facts.forward_known_s + forward_s,
            facts.forward_kernels * host("forward") + facts.forward_views * views,
        )
        + larger(
            facts.backward_known_s + backward_s,
            facts.backward_kernels * host("backward") + facts.backward_views * views,
        )
        + larger(update, facts.update_kernels * host("update"))
        + 1e-6 * values["step_us"]
    )


def fitted_kernels(graph: ModelGraph, setting: ModuleSetting) -> list[DeviceKernel]:
    """The kernels of a step whose price is fitted, equal ones once."""
    (block,) = graph.kinds
    counts: Counter[DeviceKernel] = Counter()
    for op in (*block.forward_ops, *block.backward_ops):
        if is_kernel_priced(op, setting.device):
            for kernel in op.kernels or ():
                counts[replace(kernel, count=1)] += kernel.count
    return [replace(kernel, count=count) for kernel, count in counts.items()]


class _Watched(dict[str, float]):
    """Values that note which of them were asked for."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> float:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: float = 0.0) -> float:  # type: ignore[override] # of dict's overloads the one that is called
        self.asked.add(key)
        return super().get(key, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """Rows ready to be fitted: kernels of all of them, one after the other.

    row, backward, count   [kernels];  measured_s  [rows]
    """

    kernels: KernelGroups
    facts: StepFacts
    row: NDArray[np.int64]
    backward: Flags
    count: Array
    measured_s: Array

    def kernel_sums(self, kernel: Kernel, values: Mapping[str, float]) -> Array:
        """[2, rows] device seconds of the kernels of a kind, forward and backward."""
        places, group = self.kernels[kernel]
        seconds = group_seconds(kernel, group, values) * group.count
        row, rows = self.row[places], len(self.measured_s)
        late = group.backward
        parts = [np.bincount(row[own], seconds[own], rows) for own in (~late, late)]
        return np.asarray(parts)

    def sums(self, values: Mapping[str, float]) -> dict[Kernel, Array]:
        """The same of every kind."""
        return {kernel: self.kernel_sums(kernel, values) for kernel in self.kernels}

    def log_errors(self, sums: Mapping[Kernel, Array], values: Mapping[str, float]) -> Array:
        """[rows] log(predicted / measured)."""
        device = np.sum(list(sums.values()), axis=0)
        return np.log(total_s(self.facts, device[0], device[1], values) / self.measured_s)


def measured_steps(
    steps: Sequence[ModelGraph], settings: Sequence[ModuleSetting], measured_s: Sequence[float]
) -> MeasuredSteps:
    """The rows as arrays."""
    pairs = list(zip(steps, settings, strict=True))
    arrays = [
        kernel_arrays(fitted_kernels(step, setting), setting.device) for step, setting in pairs
    ]
    joined = _joined(arrays)
    return MeasuredSteps(
        kernels=grouped(joined),
        facts=_joined([step_facts(step, setting) for step, setting in pairs]),
        row=np.repeat(np.arange(len(steps)), [len(x.count) for x in arrays]),
        backward=joined.backward,
        count=joined.count,
        measured_s=np.asarray(measured_s),
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    """The arrays of several steps, one after the other."""
    made = type(parts[0])
    names = [x.name for x in fields(made)]
    return made(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def fit(
    data: MeasuredSteps,
    used: Flags,
    begin: Mapping[str, float] | None = None,
    iterations: int = _ITERATIONS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """The constants that fit the `used` rows best (Gauss-Newton on logs with damping)."""
    plan = begin_of()
    names = list(plan)
    centre = np.log([plan[name][0] for name in names])
    width = np.asarray([plan[name][1] for name in names])
    x = centre.copy() if begin is None else np.log([begin[name] for name in names])
    damping = 1e-2
    sums = data.sums(_values(names, x))
    errors = data.log_errors(sums, _values(names, x))[used]
    cost = _cost(errors, x, centre, width)
    for turn in range(iterations):
        slopes = _slopes(data, names, x, sums)[used]
        weight = 1 / np.sqrt(1 + (errors / _ERROR) ** 2)
        normal = slopes.T @ (slopes * weight[:, None]) + np.diag(_PRIOR / width**2)
        pull = slopes.T @ (errors * weight) + _PRIOR * (x - centre) / width**2
        for _ in range(6):
            solved = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            tried = x - np.clip(solved, -0.7, 0.7)
            next_sums = data.sums(_values(names, tried))
            next_errors = data.log_errors(next_sums, _values(names, tried))[used]
            next_cost = _cost(next_errors, tried, centre, width)
            if next_cost < cost:
                break
            damping *= 4
        else:
            break
        ended = cost - next_cost < 3e-4 * cost
        x, sums, errors, cost = tried, next_sums, next_errors, next_cost
        damping = max(damping / 3, 1e-6)
        say(f"turn {turn}: median error {np.median(np.abs(np.expm1(errors))):.4f}")
        if ended:
            break
    return _values(names, x)


def without(
    data: MeasuredSteps, found: Mapping[str, float], groups: Iterable[Flags], *, used: Flags
) -> Array:
    """[rows] log errors of the rows of each group, predicted by constants refitted without them:
    one Gauss-Newton step away from `found`, the fit of all `used` rows, with the slopes there."""
    plan = begin_of()
    names = list(plan)
    centre = np.log([plan[name][0] for name in names])
    width = np.asarray([plan[name][1] for name in names])
    x = np.log([found[name] for name in names])
    sums = data.sums(found)
    errors = data.log_errors(sums, found)
    slopes = _slopes(data, names, x, sums)
    weight = 1 / np.sqrt(1 + (errors / _ERROR) ** 2)
    left = errors.copy()
    for out in groups:
        kept = used & ~out
        normal = slopes[kept].T @ (slopes[kept] * weight[kept, None]) + np.diag(_PRIOR / width**2)
        pull = slopes[kept].T @ (errors[kept] * weight[kept]) + _PRIOR * (x - centre) / width**2
        values = _values(names, x - np.clip(np.linalg.solve(normal, pull), -0.7, 0.7))
        left[out] = data.log_errors(data.sums(values), values)[out]
    return left


def _slopes(
    data: MeasuredSteps, names: Sequence[str], x: Array, sums: Mapping[Kernel, Array]
) -> Array:
    """[rows, constants] of log errors; only the kernels that ask for a constant are priced anew."""
    values = _values(names, x)
    asked: dict[Kernel, set[str]] = {}
    for kernel in data.kernels:
        watched = _Watched(values)
        data.kernel_sums(kernel, watched)
        asked[kernel] = watched.asked
    before = data.log_errors(sums, values)
    found = np.empty((len(before), len(names)))
    for place, name in enumerate(names):
        moved = {**values, name: values[name] * np.exp(_STEP)}
        changed = {k: data.kernel_sums(k, moved) for k, own in asked.items() if name in own}
        found[:, place] = (data.log_errors({**sums, **changed}, moved) - before) / _STEP
    return found


def _values(names: Sequence[str], x: Array) -> dict[str, float]:
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def _cost(errors: Array, x: Array, centre: Array, width: Array) -> float:
    rows = 2 * _ERROR**2 * (np.sqrt(1 + (errors / _ERROR) ** 2) - 1)
    return float(rows.sum() + _PRIOR * (((x - centre) / width) ** 2).sum())
