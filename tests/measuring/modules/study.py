"""Thirty modules planned, run and compared on this machine, as a user would: the command line.

    shardwright profile -o profile.json
    python -m tests.measuring.modules.study RUNS --local profile.json --precision fp32

RUNS is a folder that keeps each module's plan and run, so an interrupted study goes on and a
finished one is told again (`--again`: with the predictions that today's code makes of the same
plans from the same profile). Modules of `libraries.py` need torchvision and timm.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.document import read_document
from profiles.hardware.catalogue.catalog import CLUSTER_SCHEMA
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from shardwright.analysis.comparison import compare_run
from shardwright.requests.local_paths import trace_cache
from simulator.traced.predict import predict
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import PlanFile

# By file the factories, and the samples of a step: all that one gives.
MODULES = {
    "images": {"video": 4, "unet": 4, "separable": 8, "wave": 4, "autoencoder": 8, "dense": 8},
    "sequences": {
        "tagger": 16,
        "recurrent": 8,
        "encoder": 8,
        "translator": 8,
        "fourier": 8,
        "scan": 4,
    },
    "tables": {"recommender": 256, "graph": 8, "points": 4},
    "perceptrons": {"wide": 8, "field": 4096, "mixer": 8, "experts": 256},
    "language": {"bert": 4, "t5": 4},
    "libraries": {
        "resnet18": 4,
        "shufflenet": 8,
        "squeezenet": 4,
        "mobilenet": 8,
        "mnasnet": 8,
        "convnext": 4,
        "vision_transformer": 4,
        "efficientnet": 4,
        "repvgg": 4,
    },
}
PLACES = {name: place for place, names in MODULES.items() for name in names}
HERE = "tests.measuring.modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One module's prediction beside its run.

    error         (predicted - measured) / measured of the step, by wall time
    at_profile    the same were the machine as fast as in its profile (reference kernel `layers`)
    busy          the same of forward and backward, by CPU time; nan where they overlap in no stage
    width         the interval's high over low
    """

    name: str
    layout: str
    measured_s: float
    error: float
    at_profile: float
    busy: float
    inside: bool
    width: float
    undisturbed: float

    def __str__(self) -> str:
        mark = "" if self.inside else "  OUTSIDE"
        return (
            f"{self.name:20} {self.layout:24} {1e3 * self.measured_s:7.1f} ms {self.error:+6.1%} "
            f"at profile's speed {self.at_profile:+6.1%}  CPU {self.busy:+6.1%}  "
            f"x{self.width:4.2f} undisturbed {self.undisturbed:4.0%}{mark}"
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args(arguments)
    names = [name for name in PLACES if not asked.only or name in asked.only.split(",")]
    if not asked.again:
        for name in names:
            plan_and_run(name, asked.runs, asked.local, asked.precision)
    cluster = read_document(asked.local, Cluster, schema=CLUSTER_SCHEMA) if asked.again else None
    found = list(outcomes(asked.runs, names, cluster))
    print(*found, summary(found), sep="\n")
    return 0


def plan_and_run(name: str, runs: Path, profile: Path, precision: str) -> None:
    """Plans a module and runs the plan, each once; what the commands say is kept beside."""
    runs.mkdir(parents=True, exist_ok=True)
    plan, run = runs / f"{name}.plan.json", runs / f"{name}.run.json"
    model = f"{HERE}.{PLACES[name]}:{name}"
    batch = str(MODULES[PLACES[name]][name])
    planned = ("plan", model, "--on", "local", "--local", str(profile), "--global-batch", batch)
    if not plan.exists():
        _shardwright(
            *planned, "--precision", precision, "-o", str(plan), told=runs / f"{name}.plan.txt"
        )
    if plan.exists() and not run.exists():
        _shardwright("run", str(plan), "-o", str(run), told=runs / f"{name}.run.txt")


def outcomes(runs: Path, names: Sequence[str], cluster: Cluster | None) -> Iterator[Outcome]:
    """What each module's run says of its prediction, or of a prediction made now from `cluster`."""
    for name in names:
        run = runs / f"{name}.run.json"
        if not run.exists():
            print(f"{name:20} not run: see {runs / name}.plan.txt and .run.txt")
            continue
        answer = read_document(runs / f"{name}.plan.json", PlanFile, schema=PLAN_SCHEMA)
        measured = read_document(run, Measurement, schema=MEASUREMENT_SCHEMA)
        assert answer.plan is not None
        if cluster is not None:
            work = answer.plan.workload
            traced = trace_model(
                resolve_model(answer.plan.model),
                sequence_length=work.sequence_length,
                dtype=work.compute_dtype,
                tp_degrees=tuple({1, answer.plan.degrees.tp}),
                target="cpu",
                cache=trace_cache(),
            )
            answer = replace(answer, prediction=predict(answer.plan, traced, cluster))
        yield outcome(name, answer, measured)


def outcome(name: str, answer: PlanFile, measured: Measurement) -> Outcome:
    plan, prediction = answer.plan, answer.prediction
    assert plan is not None
    assert prediction is not None
    compared = compare_run(answer, measured)
    speed = next((d.speed for d in compared.drifts if d.kernel == "layers"), 1.0)
    busy = next((r for r in compared.rows if r.name == "step: forward and backward"), None)
    told = prediction.step_time_s
    return Outcome(
        name=name,
        layout=f"{plan.degrees.mesh_text} mb{plan.micro_batch} zero{plan.zero_stage}",
        measured_s=compared.step.measured,
        error=compared.step.error,
        at_profile=told.value / (compared.step.measured * speed) - 1,
        busy=busy.cpu_error if busy is not None and busy.cpu_error is not None else float("nan"),
        inside=bool(compared.step.inside),
        width=told.high / told.low,
        undisturbed=compared.undisturbed_steps / compared.steps,
    )


def summary(found: Sequence[Outcome]) -> str:
    """The figures that the study is for."""
    if not found:
        return "no module ran"

    def middle(values: list[float]) -> str:
        sizes = sorted(abs(value) for value in values if value == value)
        return f"median {statistics.median(sizes):.1%}, worst {sizes[-1]:.0%}"

    return (
        f"{len(found)} modules: step {middle([o.error for o in found])}; at the profile's speed "
        f"{middle([o.at_profile for o in found])}; CPU time of forward and backward "
        f"{middle([o.busy for o in found])}; {sum(o.inside for o in found)} inside; intervals "
        f"{statistics.median(o.width for o in found):.2f} wide"
    )


def _shardwright(*arguments: str, told: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "shardwright", *arguments, "--quiet"], capture_output=True, text=True
    )
    told.write_text(ran.stdout + ran.stderr)
    print(f"{arguments[0]:4} {told.stem:24} {'done' if not ran.returncode else ran.stderr[-200:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
