"""Terminal report of the prediction of an imported run."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes
from shardwright.reports.terminal import format_interval
from shardwright.runs.predict_runs import PredictedRow


def prediction_report(made: PredictedRow) -> RenderableType:
    """Step time, memory and assumptions."""
    assert made.run is not None
    assert made.prediction is not None
    facts = [f"step {format_interval(made.prediction.step_time_s)}"]
    if made.shown_memory_bytes is not None:
        facts.append(f"peak {format_bytes(made.shown_memory_bytes.value)}")
        facts.append("fits" if made.prediction.fits else "does not fit")
    run = made.run
    head = Text.assemble(
        ("Predicted  ", "bold"),
        f"{', '.join(facts)}, on {run.degrees.num_devices} {run.device} ({run.stack})",
    )
    assumed = Text(f"Assumed: {'; '.join(run.defaults)}" if run.defaults else "", style="dim")
    return Group(head, assumed)
