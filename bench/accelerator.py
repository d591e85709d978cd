"""Plans run on this machine's accelerators and set beside their predictions, in one JSON file.

Started by bench/accelerator.sh. For each question the planner makes a plan for this kind of device,
`shardwright run` trains it, and what was measured goes beside what was predicted: seconds of the
step and of each stage's actions, peak of each rank, MFU, and how much of the exchange of gradients
the backward hides. A plan that fails, or that takes longer than its share of the time, is reported
with its error; the others go on.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SCHEMA = "shardwright/accelerator-bench@1"
# Marketing names as torch gives them -> clusters of the catalog; the first that stands in the name.
CATALOG = (
    ("H200", "h200-sxm"),
    ("H100 PCIe", "h100-pcie-80gb"),
    ("H100 NVL", "h100-nvl-94gb"),
    ("H100", "h100-sxm"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100", "a100-sxm-80gb"),
    ("L40S", "l40s"),
    ("RTX 4090", "rtx-4090"),
)
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A plan to be made: flags of `shardwright plan` that pin it; least  devices that it needs."""

    name: str
    flags: tuple[str, ...]
    least: int = 1


def questions(devices: int) -> tuple[Question, ...]:
    """Those that so many devices can answer: each way of sharding once, then two at a time."""
    n = str(devices)
    found = [
        Question(name="one-way", flags=("--dp", n, "--zero", "0")),
        Question(name="zero-3", flags=("--dp", n, "--zero", "3"), least=2),
        Question(
            name="zero-2-recompute",
            flags=("--dp", n, "--zero", "2", "--recompute", "full"),
            least=2,
        ),
        Question(name="pipeline", flags=("--pp", "2", "--schedule", "1f1b"), least=2),
        Question(name="split-backward", flags=("--pp", "2", "--schedule", "zb-h1"), least=2),
        Question(name="tensor", flags=("--tp", "2"), least=2),
        Question(name="mixed", flags=("--pp", "2", "--tp", "2", "--zero", "1"), least=8),
    ]
    return tuple(question for question in found if question.least <= devices)


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 where no plan ran."""
    options = _options(arguments)
    devices = options.devices or _count(options.device)
    began = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="shardwright-accelerator-") as folder:
        asked = questions(devices)
        for number, question in enumerate(asked):
            left_s = options.minutes * 60 - (time.monotonic() - began)
            share_s = max(60.0, left_s / (len(asked) - number))
            print(f"{question.name} ...", flush=True)
            result = one(question, Path(folder), options, devices, share_s)
            results.append(result)
            print(f"  {line_of(result)}", flush=True)
    document = {
        "schema": SCHEMA,
        "machine": _machine(options.device),
        "devices": devices,
        "torch": torch.__version__,
        "seconds": time.monotonic() - began,
        "plans": results,
    }
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.output}")
    return 0 if any("measured" in result for result in results) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/accelerator.sh", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--devices", type=int, default=0, help="how many; all of the machine's")
    parser.add_argument("--cluster", default="", help="in place of what torch's name stands for")
    parser.add_argument("--model", default="", help="any that `shardwright plan` takes")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all plans together")
    parser.add_argument("--output", default="accelerator.json")
    return parser.parse_args(arguments)


def _count(device: str) -> int:
    if device == "cpu":
        return 2
    count = torch.cuda.device_count()
    if not count:
        raise SystemExit(
            "error: torch sees no GPU; install torch for this machine's CUDA in .venv or name an "
            "interpreter that has it (PYTHON=...), or try the script with --device cpu"
        )
    return count


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    return platform.processor() or platform.machine()


def cluster_of(name: str, devices: int) -> str:
    """The catalog's cluster for devices that torch gives this name."""
    for part, entry in CATALOG:
        if part in name:
            return f"1x{devices}x{entry}"
    raise SystemExit(f"error: the catalog has no {name!r}; name one (--cluster 1x8xh100-sxm)")


def one(
    question: Question, folder: Path, options: argparse.Namespace, devices: int, share_s: float
) -> dict[str, Any]:
    """A question's plan, prediction and measurement, or the error."""
    cpu = options.device == "cpu"
    model = options.model or ("llama-3.2-1b" if not cpu else str(_tiny(folder)))
    cluster = options.cluster or (
        f"1x{devices}xa100-sxm-40gb" if cpu else cluster_of(_machine("cuda"), devices)
    )
    plan, run = folder / f"{question.name}.json", folder / f"{question.name}.run.json"
    sizes = (
        ("--seq", "32", "--global-batch", "8", "--precision", "fp32")
        if cpu
        else ("--seq", "2048", "--global-batch", str(16 * devices), "--precision", "bf16")
    )
    result: dict[str, Any] = {"name": question.name, "flags": list(question.flags)}
    asked = ("plan", model, "--on", cluster, *sizes, *question.flags, "-o", str(plan))
    code, _, error = _shardwright((*asked, "--no-cache", "--quiet"), 120.0)
    if code != 0 or not plan.is_file():
        return {**result, "error": error.strip()[-500:]}
    result["prediction"] = predicted(json.loads(plan.read_text(encoding="utf-8")))
    steps = options.steps or (2 if cpu else 10)
    command = ("run", str(plan), "--steps", str(steps), "--device", options.device)
    command += ("--any-machine", "-o", str(run), "--quiet")
    began = time.monotonic()
    code, _, error = _shardwright(command, share_s)
    result["run_seconds"] = time.monotonic() - began
    if code != 0 or not run.is_file():
        return {**result, "error": error.strip()[-500:]}
    result["measured"] = measured(json.loads(run.read_text(encoding="utf-8")), result["prediction"])
    return result


def predicted(answer: dict[str, Any]) -> dict[str, Any]:
    """Of a plan file what is compared."""
    prediction = answer["prediction"]
    return {
        "step_s": prediction["step_time_s"]["value"],
        "mfu": prediction["mfu"]["value"],
        "components_s": {part["name"]: part["time_s"] for part in prediction["components"]},
        "peak_bytes": [peak_of(rank) for rank in prediction["ranks"]],
        "stages": prediction["stages"],
    }


def peak_of(rank: dict[str, Any]) -> float:
    """A rank's peak: the sum of its parts."""
    parts = ("parameters", "gradients", "optimizer", "activations", "transient", "communication")
    return float(sum(rank[f"{part}_bytes"] for part in parts))


def measured(run: dict[str, Any], prediction: dict[str, Any]) -> dict[str, Any]:
    """Of a measurement what is compared. MFU follows from the predicted one: the same operations
    in other seconds. `exposed_exchange_s` is what ranks spend on exchanges alone; the rest of what
    is predicted of messages ran beside the backward, or took no time."""
    step_s = run["step_wall_s"]
    exchange_s = [rank["data_parallel_s"] for rank in run["ranks"]]
    return {
        "step_s": step_s,
        "step_over_predicted": step_s / prediction["step_s"],
        "mfu": prediction["mfu"] * prediction["step_s"] / step_s,
        "peak_bytes": [rank["peak_memory_bytes"] for rank in run["ranks"]],
        "exposed_exchange_s": exchange_s,
        "optimizer_s": [rank["optimizer_s"] for rank in run["ranks"]],
        "waiting_s": [rank["communication_s"] for rank in run["ranks"]],
        "stages": run["stages"],
        "steps": run["steps"],
        "events": run["events"],
        "machine": run["machine"],
    }


def line_of(result: dict[str, Any]) -> str:
    """A result in a line."""
    if "measured" not in result:
        return f"failed: {result.get('error', '')}"
    seen, told = result["measured"], result["prediction"]
    return (
        f"step {1e3 * seen['step_s']:.1f} ms (predicted {1e3 * told['step_s']:.1f}), MFU "
        f"{seen['mfu']:.1%} ({told['mfu']:.1%}), peak {max(seen['peak_bytes']) / 2**30:.2f} GiB "
        f"({max(told['peak_bytes']) / 2**30:.2f})"
    )


def _tiny(folder: Path) -> Path:
    path = folder / "tiny.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    return path


def _shardwright(arguments: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Exit status and output of a command; that it took too long is an error of its own."""
    command = [sys.executable, "-m", "shardwright", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"stopped after {timeout_s:.0f} s"
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
