"""`shardwright run`: runs a plan on this machine and measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from profiles.document import read_mapping
from profiles.errors import InputError, ToleranceError, UnknownNameError
from profiles.units import format_time, parse_quantity
from shardwright.console.flags import Quiet
from shardwright.console.output import Bar, need_room_for, note, show
from shardwright.plugins.plugin import file_runner
from shardwright.requests.named_model import import_from_here

EXAMPLES = (
    "Examples:\n\n  shardwright run plan.json --steps 20\n\n  shardwright run plan.json "
    "--model mypkg.model:build --check"
)


_NAMED = 3


def run(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="plan file, or sharding file of `shard`")
    ],
    model: Annotated[
        str, typer.Option("--model", help="name of the plan's model here: package.module:factory")
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="number of measured steps")] = 10,
    check: Annotated[
        bool, typer.Option("--check", help="compare loss and every gradient with the unsplit model")
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="run each block's modules under torch.compile if possible"),
    ] = False,
    output: Annotated[Path, typer.Option("-o", help="measurement file to write")] = Path(
        "run.json"
    ),
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="number of processes; must match the plan"),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="cpu or cuda (default: cuda for a GPU plan, if available)"),
    ] = "",
    timeout: Annotated[str, typer.Option(help="time limit of each rank")] = "300s",
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="allow a machine other than the planned one")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """`shardwright run`: runs a plan on this machine and measures it."""
    # Here, since --help needs none of them.
    from executor.launch import run_plan
    from shardwright.requests.opened_plan import open_plan

    need_room_for(output)
    if device not in ("", "cpu", "cuda"):
        raise UnknownNameError("device", device, ("cpu", "cuda"), where="--device")
    seconds = parse_quantity(timeout, "time", where="--timeout")
    run_file = file_runner(str(read_mapping(plan_file).get("schema", "")))
    if run_file is not None and compiled:
        raise InputError(
            f"--compile: {plan_file} places single ops, not modules; run it without --compile"
        )
    if run_file is not None:
        run_file(
            plan_file,
            model=model,
            steps=steps,
            output=output,
            processes=processes,
            device=device or "cpu",
            timeout_s=seconds,
        )
        return
    opened = open_plan(plan_file)
    import_from_here(model or opened.plan.model)
    with Bar("steps", quiet=quiet) as progress:
        measured = run_plan(
            plan_file,
            model=model,
            steps=steps,
            check=check,
            compiled=compiled,
            output=output,
            processes=processes,
            timeout_s=seconds,
            device=device,
            any_machine=any_machine,
            answer=opened.planned,
            announce=lambda command: note(f"running: {command}"),
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
    if compiled:
        eager = [f"{path} ({why})" for path, why in measured.eager_units.items()]
        kept = f"; {len(eager)} ran eagerly: {', '.join(eager[:_NAMED])}" if eager else ""
        note(
            f"{measured.compiled_units} units ran compiled{kept}{', ...' if eager[_NAMED:] else ''}"
            "; predictions are for eager ones"
        )
    lost = measured.steps_without_finite_loss
    if lost or measured.not_finite:
        what = f"the loss was nan or infinite in {lost} of {len(measured.steps)} steps"
        where = f", first in {measured.not_finite}" if measured.not_finite else ""
        note(
            f"warning: {what if lost else 'gradients were nan or infinite'}{where}; their times "
            "hold, but nothing was trained: look at loss, inputs and precision"
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
    note(f"Next: shardwright compare {plan_file} {output} --html report.html")
