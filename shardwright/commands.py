"""What each command does: read, call the library, print or write. Results go to stdout."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from profiles.document import decode, encode, read_mapping, to_json, write_document, write_text
from profiles.errors import (
    DocumentError,
    InfeasibleError,
    InputError,
    ToleranceError,
    UnknownNameError,
)
from profiles.hardware.catalog import catalog_rows, get_cluster, get_device
from profiles.hardware.cluster import Cluster
from profiles.units import format_time, parse_quantity
from shardwright import api
from shardwright.compare import compare_plans, compare_run
from shardwright.places import local_profile, trace_cache
from shardwright.report import terminal
from simulator.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.plan import PLAN_SCHEMA, Recompute
from simulator.plan_file import PlanFile
from simulator.workload import Workload

# Always present in `plan --json`, null where there is no value.
PLAN_KEYS = (
    "status",
    "bound",
    "gap",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "mfu",
    "peak_memory_bytes",
    "usd_per_million_tokens",
    "search_time_s",
    "cells_considered",
    "plan",
    "alternatives",
)
DEFAULT_SEQUENCE = 4096


def show(what: RenderableType) -> None:
    """Print a result, at most 100 columns."""
    width = min(terminal.WIDTH, Console().width) if sys.stdout.isatty() else terminal.WIDTH
    Console(width=width, highlight=False).print(what)


def note(text: str) -> None:
    """Say something about how the result came about, on stderr."""
    Console(stderr=True, width=terminal.WIDTH, highlight=False).print(Text(text, style="dim"))


class Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[label]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(title, total=1, label="")

    def __enter__(self) -> Callable[..., None]:
        self._bar.start()

        def update(done: int, total: int, label: str = "") -> None:
            self._bar.update(self._task, completed=done, total=total, label=label)

        return update

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def import_from_here(model: str) -> None:
    """A user's factory may live in the current folder; only then it is on the import path."""
    if ":" in model and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def sequence_of(model: str, seq: int | None) -> tuple[int, tuple[str, ...]]:
    """The sequence length, and what was assumed of it."""
    from profiles.model.loaders import resolve_model

    if seq is not None:
        if seq < 1:
            raise InputError(f"--seq must be 1 or more, got {seq}")
        return seq, ()
    spec = resolve_model(model)
    if spec.family in ("factory", "vision"):
        return 1, ()
    config = spec.config
    limit = config.get("max_position_embeddings") or config.get("n_positions") or DEFAULT_SEQUENCE
    limit = config.get("max_target_positions") or limit
    chosen = min(int(limit), DEFAULT_SEQUENCE)
    return chosen, (f"sequence length {chosen} (--seq)",)


# --- commands ---------------------------------------------------------------------------------


def fit(
    model: str, seq: int | None, micro_batch: int, precision: str, *, json_output: bool
) -> None:
    """`shardwright fit`."""
    from shardwright.fit import fit_model, fit_report

    import_from_here(model)
    length, assumed = sequence_of(model, seq)
    traced = api.trace(model, sequence_length=length, precision=precision, tp_degrees=(1,))
    found = fit_model(traced, micro_batch=micro_batch, precision=precision)
    if json_output:
        sys.stdout.write(to_json(encode(found)))
        return
    show(fit_report(found))
    for said in (
        *assumed,
        f"{precision} (--precision)",
        "AdamW",
        f"micro-batch {micro_batch} (--micro-batch)",
    ):
        note(f"assumed: {said}")


def space_of(axes: dict[str, str | None]) -> Any:
    """The search space of the pins given as flags."""
    from planner.space import Space, parse_axis

    given: dict[str, Any] = {}
    for axis in ("micro_batch", "tp", "pp", "dp", "zero", "vpp"):
        text = axes.get(axis)
        if text is not None:
            given[axis] = parse_axis(text, "--" + axis.replace("_", "-"))
    if axes.get("recompute") is not None:
        names = tuple(part.strip() for part in str(axes["recompute"]).split(","))
        for name in names:
            if name not in list(Recompute):
                raise UnknownNameError("recompute kind", name, list(Recompute), where="--recompute")
        given["recompute"] = tuple(Recompute(name) for name in names)
    if axes.get("schedule") is not None:
        given["schedule"] = tuple(p.strip() for p in str(axes["schedule"]).split(","))
    return Space(**given)


def plan(
    model: str,
    on: str,
    global_batch: int,
    seq: int | None,
    *,
    axes: dict[str, str | None],
    precision: str,
    optimizer: str,
    solver: str,
    output: Path | None,
    json_output: bool,
    explain: bool,
    time_limit: str | None,
    seed: int,
    local: Path | None,
    quiet: bool,
) -> None:
    """`shardwright plan`."""
    import_from_here(model)
    space = space_of(axes)
    cluster = get_cluster(on, local=local or local_profile())
    length, assumed = sequence_of(model, seq)
    work = Workload(
        global_batch=global_batch, sequence_length=length, precision=precision, optimizer=optimizer
    )
    degrees = api.tp_degrees_for(cluster) if space.tp is None else tuple({1, *space.tp})
    traced = api.trace(
        model,
        sequence_length=length,
        precision=precision,
        tp_degrees=tuple(sorted(degrees)),
        target=api.target_of(cluster),
    )
    limit = parse_quantity(time_limit, "time", where="--time-limit") if time_limit else None
    answer = search(traced, cluster, work, space, solver, limit, seed, quiet=quiet or json_output)
    if assumed:
        from dataclasses import replace

        answer = replace(answer, assumptions=(*assumed, *answer.assumptions))
    if output is not None:
        write_document(output, answer, schema=PLAN_SCHEMA, provenance=provenance(cluster))
    if json_output:
        sys.stdout.write(to_json(plan_json(answer)))
    else:
        show(terminal.plan_report(answer))
        if explain and answer.plan is not None:
            show(terminal.prediction_report(answer, explain=True))
        if output is not None and answer.plan is not None:
            note(f"written: {output}. Next: shardwright predict {output} --html report.html")
    if answer.plan is None:
        why = answer.infeasibility
        what = f"{why.term} of stage {why.stage}" if why else "the pins"
        raise InfeasibleError(f"no plan of {model} fits on {on}: {what}")


def search(
    traced: Any,
    cluster: Cluster,
    work: Workload,
    space: Any,
    solver: str,
    limit: float | None,
    seed: int,
    *,
    quiet: bool,
) -> PlanFile:
    """The search with bound, incumbent and gap on a terminal."""
    live = not quiet and sys.stderr.isatty()

    def progress(bound: float, incumbent: float, gap: float, seconds: float) -> None:
        if live:
            best = format_time(incumbent) if incumbent < float("inf") else "none yet"
            text = f"bound {format_time(bound)}  best {best}  gap {gap:.1%}  {seconds:.1f} s"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    answer = api.plan(
        traced,
        cluster,
        work,
        space=space,
        solver=solver,
        seed=seed,
        time_limit_s=limit,
        progress=progress,
    )
    if live:
        sys.stderr.write("\r\x1b[K")
    return answer


def plan_json(answer: PlanFile) -> dict[str, Any]:
    """The plan file as plain values, with every promised key."""
    data = dict.fromkeys(PLAN_KEYS) | encode(answer)
    return {"schema": PLAN_SCHEMA, **data}


def provenance(cluster: Cluster) -> dict[str, Any]:
    """How a file came about: version and command."""
    from shardwright import __version__

    return {
        "version": __version__,
        "command": " ".join(["shardwright", *sys.argv[1:]]),
        "cluster_devices": cluster.num_devices,
    }


def predict(
    path: Path, *, explain: bool, html: Path | None, trace: Path | None, json_output: bool
) -> None:
    """`shardwright predict`."""
    answer = api.load_plan(path)
    if answer.plan is None or answer.prediction is None:
        raise DocumentError(f"{path} holds no plan: its status is {answer.status!r}")
    write_reports(answer, None, html=html, trace=trace)
    if json_output:
        sys.stdout.write(to_json(encode(answer.prediction)))
        return
    show(terminal.prediction_report(answer, explain=explain))


def write_reports(
    answer: PlanFile, measured: Measurement | None, *, html: Path | None, trace: Path | None
) -> None:
    """The HTML report and the Chrome trace, where asked for."""
    if html is not None:
        from shardwright.report.html import report_html

        write_text(html, report_html(answer, measured))
        note(f"written: {html}")
    if trace is not None:
        from shardwright.report.chrome_trace import chrome_trace

        write_text(trace, json.dumps(chrome_trace(answer.prediction, measured)))
        note(f"written: {trace}; open it at ui.perfetto.dev or chrome://tracing")


def profile(
    *,
    quick: bool,
    devices: int | None,
    threads: int,
    model: str | None,
    seq: int | None,
    micro_batch: str,
    precision: str,
    output: Path | None,
    quiet: bool,
) -> None:
    """`shardwright profile`."""
    from planner.space import parse_axis
    from profiles.hardware.fingerprint import num_cores
    from profiles.hardware.probe import measure_machine
    from profiles.hardware.profile_file import read_profile, with_blocks, write_profile

    path = output or local_profile()
    count = devices or max(1, num_cores() // threads)
    today = datetime.date.today().isoformat()
    if model is None or not path.is_file() or quick:
        with Bar("measuring this machine", quiet=quiet) as progress:
            cluster = measure_machine(count, threads, date=today, quick=quick, progress=progress)
        write_profile(path, cluster, provenance=provenance(cluster))
    cluster = read_profile(path)
    if model is not None:
        from profiles.hardware.probe_blocks import measure_blocks
        from profiles.model.loaders import resolve_model

        import_from_here(model)
        length, _ = sequence_of(model, seq)
        work = Workload(global_batch=1, sequence_length=length, precision=precision)
        with Bar("measuring blocks", quiet=quiet) as progress:
            points = measure_blocks(
                resolve_model(model),
                parse_axis(micro_batch, "--micro-batch"),
                sequence_length=length,
                dtype=work.compute_dtype,
                num_processes=cluster.num_devices,
                threads_per_device=threads,
                cache=trace_cache(),
                progress=progress,
            )
        cluster = with_blocks(cluster, points, date=today)
        write_profile(path, cluster, provenance=provenance(cluster))
    device = cluster.groups[0].device
    found = device.measurements
    blocks = len(found.blocks) if found else 0
    peak = device.peak_flop_per_s["float32"].value
    show(
        Text(
            f"{path}: {cluster.num_devices} devices, {peak / 1e9:.0f} GFLOP/s fp32 each, "
            f"{blocks} measured blocks. {device.notes}"
        )
    )


def run(
    path: Path,
    *,
    model: str,
    steps: int,
    check: bool,
    output: Path,
    processes: int | None,
    device: str,
    timeout: str,
    any_machine: bool,
    quiet: bool,
) -> None:
    """`shardwright run`."""
    from executor.launch import command_for, run_plan

    answer = api.load_plan(path)
    if answer.plan is None:
        raise DocumentError(f"{path} holds no plan: its status is {answer.status!r}")
    if device not in ("cpu", "cuda"):
        raise UnknownNameError("device", device, ("cpu", "cuda"), where="--device")
    seconds = parse_quantity(timeout, "time", where="--timeout")
    threads = int(answer.machine.get("threads_per_device", "1"))
    shown = command_for(
        path,
        world_size=answer.plan.world_size,
        model=model,
        steps=steps,
        check=check,
        output=output,
        threads=threads,
        device=device,
    )
    note("running: " + " ".join(["torchrun", *shown[3:]]))
    with Bar("steps", quiet=quiet) as progress:
        measured = run_plan(
            path,
            model=model,
            steps=steps,
            check=check,
            output=output,
            processes=processes,
            threads=threads,
            timeout_s=seconds,
            device=device,
            any_machine=any_machine,
            progress=progress,
        )
    quiet_steps = sum(not step.disturbed for step in measured.steps)
    show(
        Text(
            f"{output}: step {format_time(measured.step_wall_s)} (median of {quiet_steps} "
            f"undisturbed of {len(measured.steps)} steps, {measured.world_size} processes, "
            f"{measured.backend})"
        )
    )
    done = measured.gradient_check
    if done is not None:
        verdict = "equal" if done.passed else "DIFFER FROM"
        show(
            Text(
                f"gradients of {done.parameters_checked} parameters {verdict} the unsplit model's: "
                f"worst relative error {done.worst_relative_error:.1e} ({done.worst_parameter}), "
                f"loss {done.loss:.6f} against {done.reference_loss:.6f}"
            )
        )
        if not done.passed:
            raise ToleranceError(
                f"the gradients of {done.worst_parameter} are {done.worst_relative_error:.1e} off, "
                f"{done.tolerance:.0e} is allowed"
            )
    note(f"Next: shardwright compare {path} {output} --html report.html")


def compare(
    first: Path,
    second: Path,
    *,
    markdown: Path | None,
    html: Path | None,
    trace: Path | None,
    json_output: bool,
    fail_over: str | None,
) -> None:
    """`shardwright compare`."""
    from shardwright.report.markdown import comparison_markdown, difference_markdown

    answer = api.load_plan(first)
    data = read_mapping(second)
    tag = str(data.get("schema", ""))
    if tag == PLAN_SCHEMA:
        if html is not None or trace is not None or fail_over is not None:
            raise InputError(
                f"--html, --trace and --fail-over need a run, {second} is a plan; pass the "
                "run.json of a run, or leave them out"
            )
        differences = compare_plans(answer, api.load_plan(second))
        if markdown is not None:
            _write_or_print(markdown, difference_markdown(differences))
        elif json_output:
            sys.stdout.write(to_json([encode(d) for d in differences]))
        else:
            show(terminal.difference_report(differences))
        return
    if tag != MEASUREMENT_SCHEMA:
        raise DocumentError(
            f"{second} is neither a plan nor a run: its schema is {tag or 'missing'!r}; pass what "
            "`shardwright plan -o` or `shardwright run -o` wrote"
        )
    data.pop("schema")
    data.pop("provenance", None)
    measured: Measurement = decode(Measurement, data, where=str(second))
    comparison = compare_run(answer, measured)
    write_reports(answer, measured, html=html, trace=trace)
    if markdown is not None:
        _write_or_print(markdown, comparison_markdown(comparison))
    elif json_output:
        rows = [{**encode(row), "error": row.error} for row in comparison.rows]
        sys.stdout.write(to_json({**encode(comparison), "rows": rows}))
    else:
        show(terminal.comparison_report(comparison))
    if fail_over is not None:
        allowed = tolerance(fail_over)
        if abs(comparison.step.error) > allowed:
            raise ToleranceError(
                f"the predicted step is {comparison.step.error:+.1%} off the measured one, "
                f"--fail-over allows {allowed:.0%}"
            )


def tolerance(text: str) -> float:
    """`15%` as 0.15; raises InputError."""
    try:
        value = float(text.rstrip("% ")) / 100
    except ValueError:
        raise InputError(f"--fail-over {text!r} is not a percentage; write 15%") from None
    if not 0 <= value < float("inf"):
        raise InputError(f"--fail-over must be 0 or more and finite, got {text!r}; write 15%")
    return value


def _write_or_print(path: Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)
        note(f"written: {path}")


def catalog(action: str, name: str, *, json_output: bool) -> None:
    """`shardwright catalog`."""
    if action not in ("list", "show"):
        raise UnknownNameError("action", action, ("list", "show"))
    if action == "show":
        if not name:
            raise InputError("catalog show needs a device: shardwright catalog show h200-sxm")
        device = get_device(name)
        if json_output:
            sys.stdout.write(to_json(encode(device)))
            return
        show(terminal.device_report(device))
        return
    rows = catalog_rows()
    if json_output:
        sys.stdout.write(to_json([encode(row) for row in rows]))
        return
    show(terminal.catalog_report(rows))
