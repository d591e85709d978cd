"""`trainer_state.json` of the transformers Trainer: losses by step, and the whole run's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.document import read_mapping
from profiles.errors import DocumentError
from profiles.text_file import read_text
from shardwright_frameworks.logs.training_log import TrainingLog

_MEANT = "a trainer_state.json"


def is_trainer_state(path: str | Path) -> bool:
    """Whether the file looks like one: JSON with `log_history` or by its name."""
    file = Path(path)
    if file.suffix != ".json":
        return False
    return file.name.startswith("trainer_state") or '"log_history"' in read_text(file)


def read_trainer_state(path: str | Path) -> TrainingLog:
    """The values of the state. Only the last entry of a finished run has a time, that of all steps:
    the steady step is their mean, without the evaluations that the state lists.

    Raises DocumentError for JSON that is no such state.
    """
    state = read_mapping(path, expected=_MEANT)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise DocumentError(f"{path}: log_history is missing; is it {_MEANT}?")
    entries = [entry for entry in history if isinstance(entry, dict)]
    losses = [(e.get("step"), e["loss"]) for e in entries if _is_number(e.get("loss"))]
    evaluations_s = sum(e["eval_runtime"] for e in entries if _is_number(e.get("eval_runtime")))
    end = next((e for e in reversed(entries) if _is_number(e.get("train_runtime"))), {})
    steps: Any = state.get("global_step")
    runtime_s = end.get("train_runtime")
    rate = end.get("train_steps_per_second")
    counted = runtime_s * rate if _is_number(rate) and runtime_s else steps
    mean_s = None
    if runtime_s and _is_number(counted) and counted > 0:
        mean_s = max(0.0, runtime_s - evaluations_s) / counted
    total = state.get("max_steps")
    return TrainingLog(
        path=str(path),
        framework="transformers",
        steady_step_time_s=mean_s or None,
        from_="whole run" if mean_s else "",
        steps=int(steps) if _is_number(steps) else None,
        loss=float(losses[-1][1]) if losses else None,
        first_loss=float(losses[0][1]) if losses else None,
        ended="finished" if runtime_s or (steps and steps == total) else "open",
        notes=(
            "the state has no times of steps: the mean of the whole run, warm-up and saves in it"
            if mean_s
            else "the state has no times; the printed log has",
        ),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
