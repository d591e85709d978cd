"""`shardwright run`."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from profiles.document import read_mapping
from profiles.errors import ToleranceError, UnknownNameError
from profiles.units import format_time, parse_quantity
from shardwright.asking.named_model import import_from_here
from shardwright.asking.opened_plan import open_plan
from shardwright.commands.output import Bar, note, show
from simulator.values.op_sharding_file import OP_SHARDING_SCHEMA


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
    from executor.launch import run_plan

    if device not in ("cpu", "cuda"):
        raise UnknownNameError("device", device, ("cpu", "cuda"), where="--device")
    seconds = parse_quantity(timeout, "time", where="--timeout")
    if read_mapping(path).get("schema") == OP_SHARDING_SCHEMA:
        # Here, since only this branch needs the launcher of placements.
        from shardwright.commands.run_sharding import run_sharded_file

        run_sharded_file(
            path,
            model=model,
            steps=steps,
            output=output,
            processes=processes,
            device=device,
            timeout=timeout,
        )
        return
    opened = open_plan(path)
    import_from_here(model or opened.plan.model)
    with Bar("steps", quiet=quiet) as progress:
        measured = run_plan(
            path,
            model=model,
            steps=steps,
            check=check,
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
    note(f"Next: shardwright compare {path} {output} --html report.html")
