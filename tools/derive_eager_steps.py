"""Makes profiles/data/calibration/eager_steps.toml from a table of published runs.

    python -m tools.derive_eager_steps RUNS.csv

What a traced model's kernels take inside a step, from the runs of eager PyTorch with FSDP in bf16
(llm-foundry). Their models, MPT, are traced as OPT without biases: the same products and attention,
learned positions in place of slopes on the scores. Deterministic, but for the date.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from profiles.document import write_text
from profiles.hardware.catalogue.catalog import get_device
from profiles.model.graph import OpKind
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from profiles.published.run import PublishedRun
from profiles.published.run_table import read_measured, read_runs
from shardwright.api import cluster as cluster_of
from simulator.traced.block_cost import recomputed_ops
from simulator.traced.comm_cost import price_collective
from simulator.traced.in_step import (
    EAGER_STEPS_FILE,
    EAGER_STEPS_SCHEMA,
    flash_2_seconds,
    matmul_seconds,
)
from simulator.traced.op_cost import moved_cost, price_op
from simulator.traced.stack import load_stack
from simulator.values.plan import Recompute

Array = NDArray[np.float64]

STACK = "composer/llm-foundry FSDP"
# Where the fit begins and how far (in log) it looks: attention's backward and FSDP's overlap are
# known least, kernels' times best.
_STARTS = {"attention": (1.3, 0.5), "memory": (1.3, 0.5), "exposed": (0.5, 0.5), "step_ms": (20, 1)}
_ROW_ERROR = 0.05  # of one published figure; weighs rows against the starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run's step is made of, alone; [blocks, 2] seconds of forward and backward (with what
    is computed again in it) per micro-batch.

    matmul_s    already as in a step (traced/in_step.py): its coefficients are the device's
    message_s   gathered parameters and summed gradients of each block
    optimizer_s once per step
    """

    model: str
    device: str
    micro_batches: int
    matmul_s: Array
    attention_s: Array
    memory_s: Array
    message_s: Array
    optimizer_s: float
    measured_s: float

    def step_s(self, coefficients: Array) -> float:
        attention, memory, exposed, step_ms = coefficients
        compute = self.matmul_s + attention * self.attention_s + memory * self.memory_s
        hidden = np.minimum(self.message_s, compute)
        whole = compute + self.message_s - (1 - min(exposed, 1.0)) * hidden
        return float(self.micro_batches * whole.sum() + self.optimizer_s + 1e-3 * step_ms)


def main() -> None:
    """Fit, leave models and devices out, write the file, and say what came out."""
    path = Path(sys.argv[1])
    measured = {row.id: row.step_time_s for row in read_measured(path)}
    rows = [
        run
        for run in read_runs(path, lenient=True)
        if run.framework == STACK and run.precision == "bf16" and measured.get(run.id)
    ]
    with tempfile.TemporaryDirectory() as folder:
        parts = [_parts(run, float(measured[run.id] or 0.0), Path(folder)) for run in rows]
    found = _fit(parts)
    residual = _errors(parts, found).mean()
    by_model = _left_out(parts, [p.model for p in parts])
    by_device = _left_out(parts, [p.device for p in parts])
    devices = sorted({p.device for p in parts})
    of = np.asarray([p.device for p in parts])
    attention, memory, exposed, step_ms = (float(f"{x:.3g}") for x in found)
    lines = [
        "# What kernels and messages of eager PyTorch take inside a step; meanings in",
        "# simulator/traced/in_step.py. Made by tools/derive_eager_steps.py.",
        f'schema = "{EAGER_STEPS_SCHEMA}"',
        f'source = "bf16 rows of {STACK} (mosaicml/llm-foundry, scripts/train/benchmarking), '
        f'traced as OPT without biases"',
        "method = \"least squares of log(predicted / measured), Cauchy's loss, weak priors "
        '(tools/derive_eager_steps.py)"',
        f'date = "{datetime.date.today().isoformat()}"',
        f"runs = {len(parts)}",
        f"residual = {residual:.4f}",
        f"left_out_model = {by_model.mean():.4f}",
        f"attention = {attention}",
        f"memory = {memory}",
        f"exposed = {min(exposed, 1.0)}",
        f"step_ms = {step_ms}",
        "[left_out_device]",
        *(f'"{name}" = {by_device[of == name].mean():.4f}' for name in devices),
    ]
    write_text(EAGER_STEPS_FILE, "\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines[3:]) + "\n")


def _parts(run: PublishedRun, measured_s: float, folder: Path) -> Parts:
    micro_batch, devices = run.micro_batch or 1, run.num_devices or 1
    per_node = min(devices, run.devices_per_node or devices)
    device = get_device(run.device)
    cluster = cluster_of(f"{devices // per_node}x{per_node}x{device.name}")
    graph = traced_like(run, folder).at(micro_batch, 1)
    kind = Recompute(run.recompute or "none")
    sizes, group = load_stack().bytes_of("bf16"), tuple(range(devices))
    matmul, attention, memory, message = (np.zeros((len(graph.chain), 2)) for _ in range(4))
    for index, ref in enumerate(graph.chain):
        block = graph.kinds[ref.kind]
        again = [block.forward_ops[i] for i in recomputed_ops(block, kind)]
        for side, ops in enumerate((block.forward_ops, (*block.backward_ops, *again))):
            for op in ops:
                if op.kind is OpKind.VIEW:
                    continue
                alone_s = price_op(op, device).time_s
                if op.attention is not None:
                    attention[index, side] += flash_2_seconds(op, device)
                elif op.matmul is not None:
                    matmul[index, side] += matmul_seconds(op, alone_s, device)
                else:
                    memory[index, side] += alone_s
        count = sum(p.spec.num_elements for p in block.parameters)

        def seconds(operation: str, bytes_each: float, count: int = count) -> float:
            return price_collective(operation, count * bytes_each, group, cluster).time_s

        gather = seconds("all_gather", sizes.compute_bytes)
        # Composer's PURE precision sums gradients in bf16.
        reduce = seconds("reduce_scatter", sizes.compute_bytes)
        message[index] = gather, (gather if run.zero_stage == 3 else 0.0) + reduce
    parameters = graph.full_parameter_count / devices
    traffic = load_stack().optimizer_traffic_bytes.adamw * parameters
    return Parts(
        model=run.model,
        device=device.name,
        micro_batches=(run.global_batch or 1) // devices // micro_batch,
        matmul_s=matmul,
        attention_s=attention,
        memory_s=memory,
        message_s=message,
        optimizer_s=moved_cost("optimizer", traffic, device).time_s,
        measured_s=measured_s,
    )


def traced_like(run: PublishedRun, folder: Path) -> TracedModel:
    """An OPT without biases of the run's figures, traced; its configuration goes into `folder`."""
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": run.hidden_size,
        "word_embed_proj_dim": run.hidden_size,
        "num_hidden_layers": run.num_layers,
        "num_attention_heads": run.num_heads,
        "ffn_dim": run.ffn_size,
        "vocab_size": run.vocab_size,
        "max_position_embeddings": run.seq_len,
        "activation_function": "gelu",
        "enable_bias": False,
    }
    path = folder / f"{run.id}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    length = run.seq_len or 1
    return trace_model(resolve_model(str(path)), sequence_length=length, dtype="bfloat16")


def _fit(parts: Sequence[Parts]) -> Array:
    starts = np.log([start for start, _ in _STARTS.values()])
    spreads = np.asarray([spread for _, spread in _STARTS.values()])

    def residuals(logs: Array) -> Array:
        rows = [np.log(p.step_s(np.exp(logs)) / p.measured_s) for p in parts]
        return np.concatenate([rows, _ROW_ERROR * (logs - starts) / spreads])

    found = least_squares(residuals, starts, loss="cauchy", f_scale=_ROW_ERROR)
    return np.asarray(np.exp(found.x))


def _errors(parts: Sequence[Parts], coefficients: Array) -> Array:
    return np.asarray([abs(p.step_s(coefficients) / p.measured_s - 1) for p in parts])


def _left_out(parts: Sequence[Parts], groups: Sequence[str]) -> Array:
    """[rows] errors where all rows of the same group are left out of the fit."""
    found = np.zeros(len(parts))
    for group in sorted(set(groups)):
        inside = [i for i, name in enumerate(groups) if name == group]
        rest = _fit([p for p, name in zip(parts, groups, strict=True) if name != group])
        found[inside] = _errors([parts[i] for i in inside], rest)
    return found


if __name__ == "__main__":
    main()
