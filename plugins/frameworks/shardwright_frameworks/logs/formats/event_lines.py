"""Events between steps (starts, checkpoints, evaluations, failures), recognized by any framework's
messages.

The messages come from the frameworks' sources (Megatron-LM training.py and checkpointing.py,
torchtitan train.py, transformers trainer.py, DeepSpeed engine.py, Lightning, Composer, MaxText,
torchrun, Slurm), read 2026-11-22.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import LogEvent, Mark

_WORDS = (
    (LogEvent.FAILURE, (
      "Traceback (most recent call last)", "CUDA out of memory", "OutOfMemoryError",
      "RESOURCE_EXHAUSTED", "ChildFailedError", "Watchdog caught collective operation timeout",
      "NCCL error", "srun: error", "slurmstepd: error", "DUE TO PREEMPTION", "DUE TO TIME LIMIT",
      "DUE TO NODE FAILURE", "Segmentation fault", "core dumped", "exitcode: -9", "SIGTERM",
      "SIGABRT",
    )),
    (LogEvent.START, (
      "end of arguments ---", "[before the start of training step]", "using world size:",
      "Starting job:", "***** Running training *****", "DeepSpeed info: version",
      "[Start training]", "System Information: Jax", "All distributed processes registered",
      "Starting training...", "Restarting worker group",
      "Setting OMP_NUM_THREADS environment variable for each process", "Batch job submission",
      "Requeued job",
    )),
    (LogEvent.FINISH, (
      "'train_runtime'", "[after training is done]", "[exiting program", "Training completed",
      "Training finished", "Finished training", "Process group destroyed", "`Trainer.fit` stopped",
      "Training successfully completed",
    )),
    (LogEvent.EVALUATION, (
      "validation loss at", "validation results at", "valuating iter",
      "***** Running Evaluation *****", "***** Running evaluation *****", "'eval_loss'",
      "Validation DataLoader", "validate step:", "Running evaluation", "[Eval]", "Eval metrics",
      "eval metrics after step", "eval step:", '"key": "eval_start"', "eval/", "Sanity Checking",
    )),
    (LogEvent.PROFILE, (
      "Capture range", "Dumping profiler traces", "Dumping memory snapshot", "Generating '/",
      "Starting profiler", "Stopping profiler",
    )),
)  # fmt: skip
_SAVE = re.compile(r"sav(?:e|ing|ed)\b|Dumping|writing|wrote", re.IGNORECASE)
_LOAD = re.compile(r"\b(?:load|restor|resum|continu)\w*", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:global[-_ ]?step|iteration|iter|step|batch|ba)[-_ =:]*(?:from\s+)?0*(\d+)", re.IGNORECASE
)
_TITAN_START = re.compile(r"Training starts at step:?\s*(\d+)")


def mark_of(line: str) -> Mark | None:
    """The event in a line, None for other lines."""
    if (found := _TITAN_START.search(line)) is not None:
        first = int(found[1])
        return Mark(what=LogEvent.START | LogEvent.RESUME, step=first - 1 if first > 1 else 0)
    for what, words in _WORDS:
        for word in words:
            if word in line:
                return Mark(what=what)
    if "heckpoint" in line or "esum" in line or "global step" in line:
        return _checkpoint(line)
    return None


def _checkpoint(line: str) -> Mark | None:
    """A saved or loaded checkpoint; the step of a loaded one is the last number, after paths."""
    if (loads := _LOAD.search(line)) is not None and "shards" not in line:
        saves = _SAVE.search(line)
        if saves is None or loads.start() < saves.start():
            numbers = _NUMBERED.findall(line)
            return Mark(what=LogEvent.RESUME, step=int(numbers[-1])) if numbers else None
    if "heckpoint" in line and _SAVE.search(line) is not None:
        return Mark(what=LogEvent.CHECKPOINT)
    return None
