"""MLPerf's log: `:::MLLOG {"time_ms": .., "key": "block_stop", "metadata": {..}}`.

Events contain the time in milliseconds and the amount of data so far (`samples_count`)
(mlperf_logging/mllog of mlcommons/logging; which keys there must be: training_policies,
training_rules.adoc). Training runs between `run_start`, `block_start` or `eval_stop` and the next
`block_stop`, `eval_start` or loss, so that evaluations are in no step. GPT-3's logs count tokens
under `epoch_num`, those of Llama samples.
"""

from __future__ import annotations

import json
from typing import Any

from shardwright_frameworks.logs.formats.log_record import Fact, LogEvent, LogRecord, Mark, StepLine

_BEGIN = ":::MLLOG "
_FACTS = {
    "global_batch_size": "global_batch",
    "max_sequence_length": "seq_len",
    "sequence_length": "seq_len",
    "seq_length": "seq_len",
}
# Benchmarks whose `epoch_num` counts epochs, not samples.
_BY_EPOCH = (
    "dlrm",
    "dlrm_dcnv2",
    "gnn",
    "maskrcnn",
    "minigo",
    "resnet",
    "retinanet",
    "rgat",
    "rnnt",
    "ssd",
    "unet3d",
)
_STARTS = ("run_start", "block_start", "epoch_start", "eval_stop")
_STOPS = ("block_stop", "eval_start", "epoch_stop", "train_loss", "tracked_stats")
# Keys that count the training so far, most reliable first; `epoch_num` and `step` count samples or
# tokens.
_COUNTS = ("samples_count", "step", "epoch_num")
_STEP_TIMES = ("train_step_time", "train_step_timing", "step_time")
_LOSSES = ("train_loss", "loss", "reduced_train_loss")


class MLPerfReader:
    """Reads lines of MLPerf's logs; remembers the beginning of the current block."""

    name = "mlperf"

    def __init__(self) -> None:
        self._batch = self._seq_len = 0.0
        self._began_s: float | None = None
        self._done: float | None = 0.0
        self._by_epoch = self._uncounted = False

    def read(self, line: str) -> LogRecord | None:
        """A line's steps, facts of the run, or event between steps; None for other lines."""
        event = _event(line)
        if event is None:
            return None
        key, time_s, value, metadata = event
        if key in _FACTS and _is_number(value) and value > 0:
            self._batch = float(value) if key == "global_batch_size" else self._batch
            self._seq_len = self._seq_len if key == "global_batch_size" else float(value)
            return Fact(values={_FACTS[key]: float(value)})
        if key == "submission_benchmark":
            self._by_epoch = value in _BY_EPOCH
        if key == "run_start":
            self._began_s, self._done = time_s, 0.0
            return Mark(what=LogEvent.START)
        if key == "run_stop":
            aborted = metadata.get("status") not in (None, "success")
            return Mark(what=LogEvent.FAILURE if aborted else LogEvent.FINISH)
        if key in _STOPS:
            written = self._step(key, time_s, value, metadata)
            if written is not None:
                return written
        if key in _STARTS:
            self._began_s = time_s
            done = self._steps(metadata)
            if done is not None:  # evaluations that end later are of earlier steps
                self._done = max(done, self._done or 0.0)
            elif self._uncounted:  # earlier training cannot be separated from what follows
                self._done = None
            self._uncounted = False
        return Mark(what=LogEvent.EVALUATION) if key == "eval_start" else None

    def _step(
        self, key: str, time_s: float, value: Any, metadata: dict[str, Any]
    ) -> LogRecord | None:
        """The steps since training continued, if the event has their number."""
        steps = self._steps(metadata)
        if steps is None:
            self._uncounted = True
            return None
        self._uncounted = False
        if self._done is None:
            self._done, self._began_s = steps, time_s
            return None
        covers = steps - self._done
        if covers <= 0:
            return None
        began_s = self._began_s
        clock_s = None if began_s is None or time_s <= began_s else (time_s - began_s) / covers
        self._done, self._began_s = steps, time_s
        stats = value if isinstance(value, dict) else {key: value}
        losses = [float(stats[name]) for name in _LOSSES if _is_number(stats.get(name))]
        printed_s = self._printed_s(stats)
        return StepLine(
            step=round(steps),
            covers=covers,
            time_s=clock_s if printed_s is None else printed_s,
            loss=losses[0] if losses else None,
            global_batch=self._batch or None,
        )

    def _steps(self, metadata: dict[str, Any]) -> float | None:
        """Number of finished optimizer steps, None if the event does not count them."""
        counts = _COUNTS[:-1] if self._by_epoch else _COUNTS
        name = next((name for name in counts if _is_number(metadata.get(name))), "")
        count = float(metadata.get(name, -1.0))
        if self._batch <= 0 or count < 0:
            return None
        in_tokens = self._batch * self._seq_len
        tokens = name != "samples_count" and in_tokens > 0 and count % in_tokens == 0
        steps = count / (in_tokens if tokens else self._batch)
        return steps if steps.is_integer() else None

    def _printed_s(self, stats: dict[str, Any]) -> float | None:
        for name in _STEP_TIMES:
            if _is_number(stats.get(name)) and stats[name] > 0:
                return float(stats[name])
        return None


def _event(line: str) -> tuple[str, float, Any, dict[str, Any]] | None:
    """Key, seconds, value and metadata of a line; None for other lines and for a truncated one."""
    at = line.find(_BEGIN)
    if at < 0:
        return None
    try:
        event = json.loads(line[at + len(_BEGIN) :])
    except ValueError:
        return None
    if not isinstance(event, dict) or not _is_number(event.get("time_ms")):
        return None
    metadata = event.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return str(event.get("key")), float(event["time_ms"]) / 1e3, event.get("value"), known


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
