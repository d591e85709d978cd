"""MLPerf's logs, written anew in their form with public figures.

Llama 3.1 8B on MI355X: rocm.blogs.amd.com/artificial-intelligence/mlperf-training-v5.1 (172,032
samples in batches of 32 at 30.69 samples/s, a block every 12,288, evaluations of 9.9 s). GPT-3
175B: github.com/mlcommons/training_results_v3.1, NVIDIA, eos-dfw_n1344_ngc23.09_nemo
(1,211,105,280 tokens in batches of 2,688 x 2,048 at 5.155 M tokens/s). Llama 2 70B with adapters:
384 samples in 199.4 s, batches of 8 (github.com/LambdaLabsML/training_results_v4.0).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import TrainingLog


class Written:
    """A log that is being written; its clock counts seconds."""

    def __init__(self, prefix: str = "") -> None:
        self.lines: list[str] = []
        self.at_s = 1_760_028_253.484
        self.prefix = prefix

    def add(
        self, key: str, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any
    ) -> None:
        event = {
            "namespace": "",
            "time_ms": round(1e3 * self.at_s),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": "/workspace/code/src/callbacks.py", "lineno": 1, **metadata},
        }
        self.lines.append(f"{self.prefix}:::MLLOG {json.dumps(event)}")

    def begin(self, batch: int, seq: int) -> None:
        self.add("submission_benchmark", "llama31_8b")
        self.add("global_batch_size", batch)
        self.add("max_sequence_length", seq)
        self.add("init_stop", kind="INTERVAL_END")
        self.add("run_start", kind="INTERVAL_START")

    def read(self, folder: Path, end: str = "\n") -> TrainingLog:
        path = folder / "result_0.txt"
        path.write_text("\n".join(self.lines) + end, encoding="utf-8")
        return read_training_log(path)


def llama(prefix: str = "", *, blocks: int = 14) -> Written:
    """Blocks of 12,288 samples with an evaluation behind each."""
    log = Written(prefix)
    log.begin(32, 8192)
    for block in range(blocks):
        log.add("block_start", kind="INTERVAL_START", samples_count=12288 * block)
        log.at_s += 12288 / 30.6949
        count = 12288 * (block + 1)
        log.add("tracked_stats", {"throughput": 30.6949}, step=count)
        log.add("block_stop", kind="INTERVAL_END", samples_count=count)
        log.add("eval_start", kind="INTERVAL_START", samples_count=count)
        log.at_s += 9.853
        log.add("eval_accuracy", 3.29, epoch_num=count - 32, samples_count=count - 32)
        log.add("eval_stop", kind="INTERVAL_END", samples_count=count)
    return log


def test_blocks_of_samples_without_their_evaluations(tmp_path: Path) -> None:
    log = llama()
    log.add("run_stop", kind="INTERVAL_END", samples_count=172032, status="success")
    found = log.read(tmp_path)
    assert found.framework == "mlperf"
    # 32 samples at 30.6949 samples/s
    assert found.steady_step_time_s == pytest.approx(1.04252, rel=1e-3)
    assert (found.steps, found.restarts, found.stalls) == (172032 // 32, 0, 0)
    assert (found.resumed, found.ended) == (False, "finished")
    assert (found.global_batch, found.seq_len, found.devices) == (32, 8192, None)
    assert found.tokens_per_s == pytest.approx(30.6949 * 8192, rel=1e-3)


def test_what_counts_tokens(tmp_path: Path) -> None:
    log = Written()
    log.begin(2688, 2048)
    tokens = 2688 * 2048
    for step in range(24, 221, 14):
        log.at_s += (24 if step == 24 else 14) * tokens / 5154997.0
        log.add("eval_start", kind="INTERVAL_START", epoch_num=step * tokens)
        log.at_s += 1.5
        log.add("eval_stop", kind="INTERVAL_END", epoch_num=step * tokens)
    log.add("tracked_stats", {"train_epoch_timing": 234.9381}, step=220 * tokens)
    found = log.read(tmp_path)
    # 2,688 x 2,048 tokens at 5,154,997 tokens/s
    assert found.steady_step_time_s == pytest.approx(1.0679, rel=1e-3)
    assert (found.steps, found.resumed, found.stalls) == (220, False, 0)


def test_losses_within_a_block_are_steps_of_it(tmp_path: Path) -> None:
    log = Written("0: ")
    log.begin(8, 8192)
    log.add("block_start", kind="INTERVAL_START", samples_count=0)
    for count in range(80, 3073, 80):
        log.at_s += 80 / 1.92579 * (40.0 if count == 1600 else 1.0)
        log.add("train_loss", 1.4 - count / 1e4, samples_count=count)
    found = log.read(tmp_path)
    # 8 samples at 1.92579 samples/s; one line is slow without a reason
    assert found.steady_step_time_s == pytest.approx(4.1541, rel=1e-3)
    assert (found.steps, found.stalls, found.ended) == (380, 1, "open")
    assert found.loss == pytest.approx(1.4 - 3040 / 1e4)


def test_ranks_restarts_aborts_and_a_cut_line(tmp_path: Path) -> None:
    single = llama(blocks=6)
    both = Written()
    both.lines = [f"{n}: {line}" for line in single.lines for n in range(4)]
    assert both.read(tmp_path).steps == 6 * 384
    log = llama(blocks=4)
    log.add("run_stop", kind="INTERVAL_END", status="aborted")
    assert log.read(tmp_path).ended == "failed"
    log.lines += llama(blocks=5).lines
    found = log.read(tmp_path)
    assert (found.restarts, found.steps, found.ended) == (1, 5 * 384, "open")
    cut = "\n".join(llama(blocks=4).lines)
    found = Written().read(tmp_path, cut[: cut.rindex('"block_stop"')])
    assert found.steps in (3 * 384, 4 * 384)
    assert found.steady_step_time_s == pytest.approx(1.04252, rel=1e-3)


def test_without_a_batch_no_step_is_told(tmp_path: Path) -> None:
    log = Written()
    log.add("run_start", kind="INTERVAL_START")
    log.at_s += 100.0
    log.add("block_stop", kind="INTERVAL_END", samples_count=512)
    found = log.read(tmp_path)
    assert (found.steps, found.steady_step_time_s) == (0, None)


def test_what_is_not_counted_is_not_told(tmp_path: Path) -> None:
    """Evaluations whose samples are no multiple of the batch: nothing follows of what lies between;
    evaluations made at the end tell of earlier steps; epochs are no samples."""
    log = Written()
    log.begin(32, 8192)
    for block in range(6):
        odd = 0 if block != 3 else 7
        log.at_s += 320 / 16.0
        count = 320 * (block + 1) + odd
        log.add("eval_start", kind="INTERVAL_START", samples_count=count)
        log.at_s += 300.0
        log.add("eval_stop", kind="INTERVAL_END", samples_count=count)
    log.add("eval_start", kind="INTERVAL_START", samples_count=640)
    log.add("eval_stop", kind="INTERVAL_END", samples_count=640)
    found = log.read(tmp_path)
    # 320 samples in 20 s, batches of 32
    assert found.steady_step_time_s == pytest.approx(2.0)
    assert (found.restarts, found.stalls) == (0, 0)
    image = Written()
    image.add("submission_benchmark", "unet3d")
    image.begin(56, 1)
    image.add("submission_benchmark", "unet3d")
    for epoch in range(0, 2800, 280):
        image.at_s += 10.0
        image.add("eval_start", kind="INTERVAL_START", epoch_num=epoch)
        image.add("eval_stop", kind="INTERVAL_END", epoch_num=epoch)
    assert image.read(tmp_path).steady_step_time_s is None
