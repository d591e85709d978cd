"""Logs unlike those of written_log.py, in forms seen in public ones; every line is our own."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import pytest
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import TrainingLog

BEGIN = datetime.datetime(2031, 5, 6, 7, 8, 9)


def reading(folder: Path, lines: list[str], name: str = "train.log") -> TrainingLog:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_training_log(path)


def clocks(step_s: float, count: int) -> list[str]:
    moments = (BEGIN + datetime.timedelta(seconds=step_s * n) for n in range(count))
    return [f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}" for moment in moments]


@pytest.mark.parametrize("escape", ["\x1b", "", "^[", "\\u001b", "#033"])
def test_colours_as_viewers_and_collectors_leave_them(escape: str, tmp_path: Path) -> None:
    """torchtitan's colours on a terminal, copied off a page, from Docker's JSON, from syslog."""
    e = escape
    lines = [
        f"[rank0]:[titan] {clock} - root - INFO - {e}[31mstep: {n:2d}  {e}[32mloss: "
        f"{9 - n / 40:8.5f}  {e}[38;2;180;60;0mgrad_norm:  1.2  {e}[38;2;54;234;195mmemory: "
        "40.25GiB(50.93%)  "
        f"{e}[34mtps: 8,192  {e}[36mtflops: 400.10  {e}[35mmfu: 40.46%{e}[39m"
        for n, clock in enumerate(clocks(2.5, 40), start=1)
    ]
    log = reading(tmp_path, lines)
    assert (log.framework, log.steps, log.loss) == ("torchtitan", 40, 8.0)
    assert log.steady_step_time_s == pytest.approx(2.5, rel=0.01)
    assert log.memory is not None
    assert (log.memory.peak_gib, log.memory.kind) == (40.25, "reserved")


def test_entries_without_a_bar_name_no_step(tmp_path: Path) -> None:
    """The Trainer with its bar disabled, every tenth step an entry: neither how many steps there
    were nor how long one took is told, whatever the times of day."""
    lines = [
        f"[INFO|callbacks.py:312] {clock} >> {{'loss': {2 - n / 60:.4f}, 'learning_rate': 5e-05, "
        f"'epoch': {n / 10:.1f}, 'throughput': 1500.1}}"
        for n, clock in enumerate(clocks(31.0, 30), start=1)
    ]
    log = reading(tmp_path, lines)
    assert (log.framework, log.steps, log.steady_step_time_s) == ("transformers", None, None)
    assert (log.restarts, log.resumed) == (None, None)
    assert log.loss == pytest.approx(1.5)
    lines.append("{'train_runtime': 930.0, 'train_steps_per_second': 0.323, 'epoch': 3.0}")
    log = reading(tmp_path, lines)
    # 930 s x 0.323 steps/s = 300 steps
    assert (log.steps, log.from_) == (300, "whole run")
    assert log.steady_step_time_s == pytest.approx(3.1, rel=0.01)


def test_axolotl_adds_memory_and_tokens_to_the_entries(tmp_path: Path) -> None:
    lines = [
        f"\r {n}%|##   | {n}/100 [{4 * n // 60:02d}:{4 * n % 60:02d}<05:00,  4.00s/it]\n"
        f"{{'loss': 1.2, 'grad_norm': 0.5, 'memory/max_active (GiB)': 70.1, 'memory/max_allocated "
        f"(GiB)': {60 + n / 100:.2f}, 'memory/device_reserved (GiB)': 75.0, "
        "'tokens_per_second_per_gpu': 4096.5, 'epoch': 0.1}"
        for n in range(1, 51)
    ]
    log = reading(tmp_path, lines)
    assert log.steady_step_time_s == pytest.approx(4.0, rel=0.01)
    assert log.memory is not None
    assert (log.memory.peak_gib, log.memory.kind) == (60.5, "allocated")
    assert (log.tokens_per_s, log.tokens_per_s_of) == (4096.5, "device")


@pytest.mark.parametrize("unit", ["s/batch", "s/step", "s/iter", "s/ba"])
def test_bars_of_batches_and_steps(unit: str, tmp_path: Path) -> None:
    lines = [
        f"1|{n}|Loss: 1.25: {n}%|##  | {n}/250 [{3 * n // 60:02d}:{3 * n % 60:02d}"
        f"<10:50,  3.00{unit}]"
        for n in range(1, 60)
    ]
    log = reading(tmp_path, lines)
    assert (log.steps, log.restarts) == (59, 0)
    assert log.steady_step_time_s == pytest.approx(3.0, rel=0.01)


def test_bars_of_rich(tmp_path: Path) -> None:
    """Lightning's RichProgressBar: the rate has two decimals, the clock tells."""
    lines = [
        f"Epoch {epoch}/9  ━━━━╸━━━━ {n}/40 0:{6 * n // 60:02d}:{6 * n % 60:02d} • 0:03:00 "
        f"0.17it/s v_num: 0.000 train_loss: {3 - n / 40:.3f}"
        for epoch, n in itertools.product(range(2), range(1, 41))
    ]
    log = reading(tmp_path, lines)
    assert (log.framework, log.steps, log.restarts) == ("lightning", 80, 0)
    assert log.steady_step_time_s == pytest.approx(6.0, rel=0.01)
    assert log.loss == 2.0


def test_scripts(tmp_path: Path) -> None:
    """llm.c, torchtune's file, PaddleNLP, modded-nanogpt, LitGPT."""
    ranged = range(1, 31)
    log = reading(
        tmp_path,
        [
            f"step {n:4d}/1000 | loss 7.125 (+1.0z)| norm 3.1 (+1.0z)| lr 1.0e-04 | 233.40 ms | "
            "45.1% bf16 MFU | 112345 tok/s"
            for n in ranged
        ],
    )
    assert (log.steps, log.tokens_per_s) == (30, 112345.0)
    assert log.steady_step_time_s == pytest.approx(0.2334)
    log = reading(
        tmp_path,
        [
            f"Step {n} | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:2345.5 "
            "peak_memory_active:39.1 peak_memory_alloc:38.5 peak_memory_reserved:44.0"
            for n in ranged
        ],
    )
    assert (log.steps, log.steady_step_time_s, log.tokens_per_s) == (30, None, 2345.5)
    assert log.tokens_per_s_of == "device"
    assert log.memory is not None
    assert (log.memory.peak_gib, log.memory.kind) == (38.5, "allocated")
    log = reading(
        tmp_path,
        [
            f"[2031-05-06 07:08:09,000] [    INFO] - loss: 9.5, learning_rate: 1e-05, "
            f"global_step: {n}, interval_runtime: 32.1, interval_samples_per_second: 39.87, "
            "interval_steps_per_second: 0.3115, progress_or_epoch: 0.01"
            for n in range(10, 300, 10)
        ],
    )
    assert log.steady_step_time_s == pytest.approx(1 / 0.3115)
    log = reading(
        tmp_path, [f"step:{n}/1393 train_time:{142 * n}ms step_avg:142.05ms" for n in ranged]
    )
    assert log.steady_step_time_s == pytest.approx(0.14205)
    # Eight micro-steps are one step, and the time is of one of the former.
    log = reading(
        tmp_path,
        [
            f"Epoch 1 | iter {8 * n} step {n} | loss train: 1.2, val: n/a | "
            "iter time: 389.68 ms (step)"
            for n in ranged
        ],
    )
    assert (log.steps, log.steady_step_time_s) == (30, None)


def test_samples_per_second_alone_with_the_printed_batch(tmp_path: Path) -> None:
    lines = ["  train_batch_size ............. 512"]
    lines += [
        f"[INFO] epoch=0/micro_step={8 * n}/global_step={n}, RunningAvgSamplesPerSec=20.1, "
        "CurrSamplesPerSec=20.48, MemAllocated=50.0GB, MaxMemAllocated=61.5GB"
        for n in range(10, 210, 10)
    ]
    log = reading(tmp_path, lines)
    assert (log.framework, log.global_batch) == ("deepspeed", 512)
    assert log.steady_step_time_s == pytest.approx(25.0)
    without = reading(tmp_path, lines[1:])
    assert without.steady_step_time_s is None


def test_fifty_megabytes_are_streamed(tmp_path: Path) -> None:
    """What is no step leaves nothing behind; steps leave eleven numbers each."""
    import tracemalloc

    path = tmp_path / "long.log"
    words = "[rank3]: some words of a library that are repeated and tell nothing at all of steps\n"
    with path.open("w", encoding="utf-8") as file:
        for n in range(1, 501):
            file.write(
                f" iteration {n:8d}/ 900 | elapsed time per iteration (ms): 2000.0 | lm loss: 2 |\n"
            )
            file.write("x" * 100_000 + "\n")
            file.write(words)
    assert path.stat().st_size > 50e6
    tracemalloc.start()
    log = read_training_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (log.steps, log.steady_step_time_s) == (500, 2.0)
    assert peak < 8e6


def test_tokens_of_argonnes_megatron_deepspeed(tmp_path: Path) -> None:
    lines = [
        f" iteration {n:8d}/ 317892 | consumed samples: {96 * n:12d} | elapsed time per iteration "
        f"(ms): 20000.0 | global batch size:    96 | lm loss: {9 - n / 10:.6E} | actual seqlen:  "
        "4096 | samples per second: 4.800 | tokens per gpu per second(tgs): 819.200 |"
        for n in range(1, 9)
    ]
    log = reading(tmp_path, lines)
    assert (log.tokens_per_s, log.tokens_per_s_of, log.global_batch) == (819.2, "device", 96)
