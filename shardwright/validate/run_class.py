"""`classes_of`: kinds of run of which a new source is harder to predict than of plain ones."""

from __future__ import annotations

from collections.abc import Callable

from profiles.errors import ShardwrightError
from profiles.published.run import PublishedRun
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.reading.complete import complete_as_usual
from simulator.training_run.reading.complete_layout import LONG_SEQUENCE
from simulator.training_run.run.training_run import TrainingRun

# Below about this many weights a layer's kernels are short, and what surrounds them weighs; a round
# number between the sizes that tables hold.
_SMALL = 3e9

CLASSES: tuple[tuple[str, Callable[[TrainingRun], bool]], ...] = (
    ("experts", lambda run: run.model.num_experts > 0),
    ("32k tokens and more", lambda run: run.seq_len >= LONG_SEQUENCE),
    ("8 bits or fewer", lambda run: run.precision in LOW_PRECISIONS),
    ("adapters (LoRA)", lambda run: run.lora),
    ("below 3 B weights", lambda run: run.model.parameters < _SMALL),
)
PLAIN = "none of these"


def classes_of(run: PublishedRun) -> tuple[str, ...]:
    """The names of the classes of CLASSES that a run is in, PLAIN alone where it is in none; none
    at all where the run cannot be predicted."""
    try:
        completed = complete_as_usual(run)
    except ShardwrightError:
        return ()
    return tuple(name for name, holds in CLASSES if holds(completed)) or (PLAIN,)
