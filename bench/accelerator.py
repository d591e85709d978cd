"""Run plans on this machine's accelerators, and compare them with predictions in one JSON file.

Started by bench/accelerator.sh. For each question the planner makes a plan for this kind of device,
`shardwright run` trains it, and what was measured goes beside what was predicted: seconds of the
step and of each stage's actions, peak of each rank, MFU, and how much of the exchange of gradients
the backward hides. A plan that fails, or that takes longer than its share of the time, is reported
with its error; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SCHEMA = "shardwright/accelerator-bench@1"
# Marketing names as torch gives them -> clusters of the catalog; the first that stands in the name.
CATALOG = (
    ("GH200", "gh200-96gb"),
    ("H200", "h200-sxm"),
    ("H100 PCIe", "h100-pcie-80gb"),
    ("H100 NVL", "h100-nvl-94gb"),
    ("H100", "h100-sxm"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100-PCIE-40GB", "a100-pcie-40gb"),
    ("A100 80GB PCIe", "a100-pcie-80gb"),
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

# The published config.json of Llama 3.2 1B.
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A plan to be made and run.

    flags   of `shardwright plan`, which pin it
    model   any that `shardwright plan` takes, or a configuration; TINY on a CPU
    least   devices that it needs
    shared  all ranks on one GPU, messages through main memory: gradients are compared with one
            process, peaks with the prediction; seconds say nothing
    """

    name: str
    model: str | dict[str, Any]
    flags: tuple[str, ...]
    least: int = 1
    shared: bool = False


LAYERS = ("--seq", "2048", "--precision", "bf16")
SHARED = ("--seq", "512", "--global-batch", "8", "--precision", "bf16")


def questions(devices: int) -> tuple[Question, ...]:
    """Those that so many devices can answer: single devices, each way of sharding once, then two
    at a time; with one device, the ways of sharding on that one."""
    n = str(devices)
    batch = ("--global-batch", str(16 * devices))
    quarter = ("--global-batch", str(4 * devices))
    fourfold = ("--global-batch", str(64 * devices))
    every = ("--dp", n, "--zero", "0" if devices == 1 else "3")
    found = [
        Question(name="one-way", model=LLAMA_1B, flags=(*LAYERS, *batch, "--dp", n, "--zero", "0")),
        Question(
            name="small-batches",
            model=LLAMA_1B,
            flags=(*LAYERS, *batch, *every, "--micro-batch", "1"),
        ),
        Question(
            name="recompute",
            model=LLAMA_1B,
            flags=(*LAYERS, *batch, *every, "--micro-batch", "4", "--recompute", "full"),
        ),
        Question(
            name="long",
            model=LLAMA_1B,
            flags=("--seq", "8192", "--precision", "bf16", *quarter, *every, "--micro-batch", "1"),
        ),
        Question(
            name="fp32",
            model=LLAMA_1B,
            flags=("--seq", "2048", "--precision", "fp32", *quarter, *every, "--micro-batch", "1"),
        ),
        Question(
            name="gpt2",
            model="gpt2",
            flags=("--seq", "1024", "--precision", "bf16", *fourfold, *every),
        ),
        Question(
            name="bert-large",
            model="bert-large",
            flags=("--seq", "512", "--precision", "bf16", *fourfold, *every),
        ),
        Question(
            name="resnet50",
            model="examples.resnet50:build",
            flags=("--precision", "bf16", "--global-batch", str(128 * devices)),
        ),
        Question(
            name="unet",
            model="examples.unet:build",
            flags=("--precision", "fp32", "--global-batch", str(32 * devices)),
        ),
    ]
    found += [
        Question(name=name, model=LLAMA_1B, flags=(*LAYERS, *batch, *flags), least=least)
        for name, flags, least in (
            ("zero-3", ("--dp", n, "--zero", "3"), 2),
            ("zero-2-recompute", ("--dp", n, "--zero", "2", "--recompute", "full"), 2),
            ("pipeline", ("--pp", "2", "--schedule", "1f1b"), 2),
            ("split-backward", ("--pp", "2", "--schedule", "zb-h1"), 2),
            ("tensor", ("--tp", "2"), 2),
            ("mixed", ("--pp", "2", "--tp", "2", "--zero", "1"), 8),
        )
    ]
    if devices == 1:
        found += [
            Question(
                name=f"shared-{name}",
                model="gpt2",
                flags=(*SHARED, *flags),
                least=least,
                shared=True,
            )
            for name, flags, least in (
                ("zero-0", ("--dp", "2", "--zero", "0"), 2),
                ("zero-1", ("--dp", "2", "--zero", "1"), 2),
                ("zero-3", ("--dp", "2", "--zero", "3"), 2),
                ("tensor", ("--tp", "2"), 2),
                ("pipeline", ("--pp", "2", "--schedule", "1f1b"), 2),
                ("split-backward", ("--pp", "2", "--schedule", "zb-h1"), 2),
                ("interleaved", ("--pp", "2", "--vpp", "2", "--schedule", "interleaved"), 2),
                ("zero-2-pipeline", ("--pp", "2", "--dp", "2", "--zero", "2"), 4),
                ("zero-3-tensor", ("--tp", "2", "--dp", "2", "--zero", "3"), 4),
            )
        ]
    return tuple(each for each in found if each.shared or each.least <= devices)


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 where no plan ran. All plans are made first, several at a time."""
    options = _options(arguments)
    devices = options.devices or _count(options.device)
    began = time.monotonic()
    results = []
    asked = [q for q in questions(devices) if not options.only or q.name in options.only]
    with tempfile.TemporaryDirectory(prefix="shardwright-accelerator-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
            plans = list(pool.map(lambda q: _planned(q, folder, options, devices), asked))
        print(f"{len(asked)} plans in {time.monotonic() - began:.0f} s", flush=True)
        for number, (question, planned) in enumerate(zip(asked, plans, strict=True)):
            left_s = options.minutes * 60 - (time.monotonic() - began)
            share_s = max(45.0, left_s / (len(asked) - number))
            print(f"{question.name} ...", flush=True)
            result = (
                planned if "error" in planned else _ran(question, planned, folder, options, share_s)
            )
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
            text = json.dumps(document, indent=1) + "\n"
            Path(options.output).write_text(text, encoding="utf-8")
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
    parser.add_argument("--only", nargs="*", default=(), help="names of questions; all of them")
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
    """The cluster string of devices by torch's name for them; exits if the catalog has none."""
    for part, entry in CATALOG:
        if part in name:
            return f"1x{devices}x{entry}"
    raise SystemExit(f"error: the catalog has no {name!r}; name one (--cluster 1x8xh100-sxm)")


def _planned(
    question: Question, folder: Path, options: argparse.Namespace, devices: int
) -> dict[str, Any]:
    """A question's prediction, its plan in the folder; or the error."""
    cpu = options.device == "cpu"
    named = TINY if cpu else question.model
    path = folder / f"{question.name}.model.json"
    if not isinstance(named, str):
        path.write_text(json.dumps(named), encoding="utf-8")
    model = options.model or (named if isinstance(named, str) else str(path))
    devices = question.least if question.shared else devices
    cluster = options.cluster or (
        f"1x{devices}xa100-sxm-40gb" if cpu else cluster_of(_machine("cuda"), devices)
    )
    sizes = ("--seq", "32", "--global-batch", "8", "--precision", "fp32") if cpu else ()
    flags = _without_sizes(question.flags) if cpu else question.flags
    result: dict[str, Any] = {"name": question.name, "model": model, "cluster": cluster}
    result |= {"flags": [*flags, *sizes], "shared": question.shared}
    asked = ("plan", model, "--on", cluster, *flags, *sizes)
    asked += ("-o", str(folder / f"{question.name}.json"), "--no-cache", "--quiet")
    code, _, error = _shardwright(asked, 120.0)
    plan = folder / f"{question.name}.json"
    if code != 0 or not plan.is_file():
        return {**result, "error": error.strip()[-500:]}
    result["prediction"] = predicted(json.loads(plan.read_text(encoding="utf-8")))
    return result


def _without_sizes(flags: tuple[str, ...]) -> tuple[str, ...]:
    pairs = zip(flags[::2], flags[1::2], strict=True)
    sizes = ("--seq", "--global-batch", "--precision")
    return tuple(text for flag, value in pairs if flag not in sizes for text in (flag, value))


def _ran(
    question: Question,
    result: dict[str, Any],
    folder: Path,
    options: argparse.Namespace,
    share_s: float,
) -> dict[str, Any]:
    """What running the plan gave, added to its prediction; or the error."""
    plan, run = folder / f"{question.name}.json", folder / f"{question.name}.run.json"
    steps = str(options.steps or (2 if options.device == "cpu" or question.shared else 10))
    began = time.monotonic()
    if question.shared:
        errors = folder / f"{question.name}.errors"
        errors.mkdir()
        command = ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={question.least}", "-m", "bench.shared_gpu", str(plan)]
        command += ["--device", options.device, "--steps", steps, "--check", "--output", str(run)]
        code, _, error = _python((*command, "--errors", str(errors)), share_s)
        error = "".join(each.read_text() for each in sorted(errors.iterdir())) or error
    else:
        command = ["run", str(plan), "--steps", steps, "--device", options.device]
        command += ["--any-machine", "-o", str(run), "--quiet"]
        code, _, error = _shardwright(command, share_s)
    result = {**result, "run_seconds": time.monotonic() - began}
    if code != 0 or not run.is_file():
        return {**result, "error": error.strip()[-3000:]}
    result["measured"] = measured(json.loads(run.read_text(encoding="utf-8")), result["prediction"])
    return result


def predicted(answer: dict[str, Any]) -> dict[str, Any]:
    """Of a plan file what is compared."""
    prediction = answer["prediction"]
    return {
        "step_s": prediction["step_time_s"]["value"],
        "low_s": prediction["step_time_s"]["low"],
        "high_s": prediction["step_time_s"]["high"],
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
        "gradient_check": run.get("gradient_check"),
    }


def line_of(result: dict[str, Any]) -> str:
    """A result in a line."""
    if "measured" not in result:
        return f"failed: {result.get('error', '')}"
    seen, told = result["measured"], result["prediction"]
    if result.get("shared"):
        check = seen["gradient_check"]
        return (
            f"{check['parameters_checked']} gradients {'equal' if check['passed'] else 'DIFFER'} "
            f"(worst {check['worst_relative_error']:.1e}), peak {_peaks(result)}"
        )
    return (
        f"step {1e3 * seen['step_s']:.1f} ms (predicted {1e3 * told['step_s']:.1f}), MFU "
        f"{seen['mfu']:.1%} ({told['mfu']:.1%}), peak {_peaks(result)}"
    )


def _peaks(result: dict[str, Any]) -> str:
    seen, told = result["measured"]["peak_bytes"], result["prediction"]["peak_bytes"]
    return f"{max(seen) / 2**30:.2f} GiB ({max(told) / 2**30:.2f})"


def _shardwright(arguments: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    return _python(("-m", "shardwright", *arguments), timeout_s)


def _python(arguments: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Exit status and output of a command; that it took too long is an error of its own."""
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"stopped after {timeout_s:.0f} s"
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
