"""Logs as they lie about: cut, compressed, mixed, crashed, in another locale, of nothing known."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import tracemalloc
from pathlib import Path

import pytest
from shardwright_frameworks.logs.followed_log import FollowedLog
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import TrainingLog, log_data

from plugins.frameworks.tests.logs.written_log import (
    DEVICES,
    FORMS,
    SEQ,
    WrittenRun,
    steady_s,
    written,
)
from profiles.errors import DocumentError

RUN = WrittenRun(attempts=((1, 40),), base_s=5.0, noise=0.005)


def reading(folder: Path, text: str | bytes, name: str = "train.log") -> TrainingLog:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_training_log(path)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_ranks_that_print_the_same_steps_are_one_run(name: str, tmp_path: Path) -> None:
    forms = {
        "torchrun": tuple(f"[rank{n}]:" for n in range(4)),
        "srun -l": tuple(f"{n:2d}: " for n in range(12)),
        "srun of torchrun": tuple(f"{n // 8}: [default{n % 8}]:" for n in range(16)),
        "mpirun": tuple(f"[1,{n}]<stdout>:" for n in range(4)),
        "without names": ("",) * 3,
    }
    for ranks in forms.values():
        log = reading(tmp_path, written(name, RUN, ranks=ranks))
        assert (log.steps, log.restarts, log.framework) == (40, 0, name)
        assert log.steady_step_time_s == pytest.approx(steady_s(RUN), rel=0.01)


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    lines = []
    for line in written("torchtitan", RUN).splitlines():
        for rank in range(8):
            tokens = line.split("tps: ")
            own = line
            if rank == 5 and len(tokens) == 2:
                own = f"{tokens[0]}tps: 11,000  tflops: 1.0  mfu: 1.00%"
            lines.append(f"[rank{rank}]:{own}")
    log = reading(tmp_path, "\n".join(lines))
    assert [each.rank for each in log.slow_ranks] == ["5"]
    assert log.slow_ranks[0].over_median == pytest.approx(256 * SEQ / DEVICES / 5 / 11000 - 1, 0.02)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_line_that_is_cut_is_left_out(name: str, tmp_path: Path) -> None:
    text = written(name, RUN)
    last = text.rstrip("\n").rfind("\n") + 1
    whole = reading(tmp_path, text.rstrip("\n"))
    assert (whole.truncated, whole.steps) == (False, 40)
    cut = reading(tmp_path, text[: last + (len(text) - last) // 2])
    assert cut.truncated
    assert cut.steps in (39, 40)  # DeepSpeed and the Trainer print a step on two lines
    assert cut.steady_step_time_s == pytest.approx(steady_s(RUN), rel=0.01)


def test_compressed_logs_are_read_and_a_cut_one_in_part(tmp_path: Path) -> None:
    text = written("megatron-lm", RUN).encode()
    for packed in (gzip.compress(text), bz2.compress(text), lzma.compress(text)):
        assert reading(tmp_path, packed, "train.log.gz").steps == 40
    half = gzip.compress(text, 0)[: len(text) // 2]
    log = reading(tmp_path, half)
    assert log.truncated
    assert 10 < (log.steps or 0) < 30
    assert any("is cut short" in note for note in log.notes)


def test_windows_files_colours_and_broken_bytes(tmp_path: Path) -> None:
    text = written("torchtitan", RUN)
    coloured = text.replace("step:", "\x1b[31mstep:").replace("  loss", "\x1b[32m  loss\x1b[0m")
    for raw in (
        text.replace("\n", "\r\n").encode(),
        text.encode("utf-16"),
        coloured.encode(),
        b"\xff\xfe\x00broken\x80\n".replace(b"\xff\xfe", b"\x80") + text.encode(),
    ):
        assert reading(tmp_path, raw).steps == 40


@pytest.mark.parametrize("name", ["megatron-lm", "maxtext", "nanotron", "transformers"])
def test_decimal_commas(name: str, tmp_path: Path) -> None:
    import re

    text = re.sub(r"(?<=\d)\.(?=\d)", ",", written(name, RUN))
    log = reading(tmp_path, text)
    assert log.steady_step_time_s == pytest.approx(steady_s(RUN), rel=0.01)
    assert log.loss == pytest.approx(11 - 2 * 40 / 90, rel=0.01)


def test_a_crash_is_told_and_a_crash_before_the_first_step(tmp_path: Path) -> None:
    crash = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    log = reading(tmp_path, written("megatron-lm", RUN) + crash)
    assert (log.ended, log.steps) == ("failed", 40)
    again = WrittenRun(attempts=((31, 60),))
    log = reading(tmp_path, written("megatron-lm", RUN) + crash + written("megatron-lm", again))
    assert (log.ended, log.restarts, log.steps) == ("open", 1, 60)
    assert [each.resumed for each in log.attempts] == [False, True]
    nothing = reading(tmp_path, crash)
    assert (nothing.steps, nothing.ended, nothing.steady_step_time_s) == (0, "failed", None)
    assert "failed before its first step" in nothing.notes[0]


def test_two_runs_of_unlike_speed_are_not_mixed(tmp_path: Path) -> None:
    short = WrittenRun(attempts=((1, 20),), base_s=9.0, noise=0.0)
    for name in ("megatron-lm", "torchtitan", "transformers"):
        log = reading(tmp_path, written(name, short) + written(name, RUN))
        assert log.steady_step_time_s == pytest.approx(steady_s(RUN), rel=0.01)
        assert log.restarts == 1
        assert any("different speeds" in note for note in log.notes)


def test_batch_warm_up_is_not_steady(tmp_path: Path) -> None:
    first = WrittenRun(attempts=((1, 30),), base_s=2.0, batch=64)
    then = WrittenRun(attempts=((31, 50),), base_s=8.0, batch=256, warm_up=())
    lines = [x for x in written("megatron-lm", then).splitlines() if "iteration  " in x]
    log = reading(tmp_path, written("megatron-lm", first) + "\n".join(lines))
    assert log.steady_step_time_s == pytest.approx(steady_s(then), rel=0.01)
    assert (log.global_batch, log.restarts, log.stalls) == (256, 0, 0)


def test_tokens_of_the_job_follow_from_what_is_printed(tmp_path: Path) -> None:
    log = reading(tmp_path, written("megatron-lm", RUN))
    assert log.tokens_per_s == pytest.approx(256 * SEQ / steady_s(RUN), rel=0.01)
    assert (log.tokens_per_s_of, log.devices, log.seq_len) == ("job", DEVICES, SEQ)
    titan = reading(tmp_path, written("torchtitan", RUN))
    assert titan.tokens_per_s_of == "device"
    assert titan.tokens_per_s == pytest.approx(256 * SEQ / DEVICES / steady_s(RUN), rel=0.01)
    assert titan.memory is not None
    assert (titan.memory.peak_gib, titan.memory.kind) == (66.91, "reserved")


def test_what_is_no_log_is_an_answer_that_says_so(tmp_path: Path) -> None:
    log = reading(tmp_path, "lorem ipsum\n" * 20)
    assert (log.framework, log.steps, log.steady_step_time_s) == (None, 0, None)
    assert "none of a step" in log.notes[0]
    with pytest.raises(DocumentError, match="is empty"):
        reading(tmp_path, "")
    with pytest.raises(DocumentError, match="no such file"):
        read_training_log(tmp_path / "missing.log")
    with pytest.raises(DocumentError, match="is a folder"):
        read_training_log(tmp_path)


def test_the_json_has_every_key(tmp_path: Path) -> None:
    data = json.loads(json.dumps(log_data(reading(tmp_path, "nothing\n"))))
    keys = (
        "framework steady_step_time_s steps restarts stalls resumed tokens_per_s memory loss spread"
    )
    assert set(keys.split()) <= set(data)
    assert data["steady_step_time_s"] is None
    assert data["memory"] is None


def test_memory_does_not_grow_with_what_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "big.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(3):
            file.write(b"[INFO] some words of a framework that say nothing\n" * 20_000)
        file.write(b"x" * 10_000_000 + b"\n")  # a tensor on one line
        file.write(written("megatron-lm", RUN).encode())
    tracemalloc.start()
    log = read_training_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.steps == 40
    assert peak < 20e6


def test_a_trainer_state_gives_the_mean_of_the_run(tmp_path: Path) -> None:
    state = {
        "global_step": 100,
        "max_steps": 100,
        "log_history": [
            {"loss": 3.5, "step": 50},
            {"eval_loss": 3.0, "eval_runtime": 20.0, "step": 50},
            {"loss": 2.5, "step": 100},
            {"train_runtime": 220.0, "train_steps_per_second": 0.4545, "step": 100},
        ],
    }
    log = reading(tmp_path, json.dumps(state), "trainer_state.json")
    # (220 s - 20 s of evaluation) / 100 steps
    assert log.steady_step_time_s == pytest.approx(2.0, rel=1e-3)
    assert (log.from_, log.loss, log.steps) == ("whole run", 2.5, 100)
    for text in ("[]", "{}", "{"):
        with pytest.raises(DocumentError, match=r"is it a trainer_state\.json"):
            reading(tmp_path, text, "trainer_state.json")


def test_a_log_is_followed_through_growth_and_rotation(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    text = written("megatron-lm", WrittenRun(attempts=((1, 60),)))
    cut = text.index("iteration       30/")
    followed = FollowedLog(path)
    assert not followed.look()
    path.write_text(text[:cut], encoding="utf-8")
    assert followed.look()
    assert followed.log().steps == 29
    with path.open("a", encoding="utf-8") as file:
        file.write(text[cut : cut + 20])  # half of a line: not yet read
    followed.look()
    assert followed.log().steps == 29
    path.rename(tmp_path / "train.log.1")
    begin = text.rindex("\n", 0, cut) + 1
    path.write_text(text[begin:], encoding="utf-8")
    assert followed.look()
    log = followed.log()
    assert (log.steps, log.restarts) == (60, 0)


def test_a_followed_log_is_read_without_its_colours(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    text = "".join(
        f"\x1b[31mstep: {step:2}  \x1b[32mloss:  8.2\x1b[39m  \x1b[33mtps: 4,096\x1b[0m\n"
        for step in range(1, 41)
    )
    path.write_text(text, encoding="utf-8")
    followed = FollowedLog(path)
    assert followed.look()
    assert followed.log() == read_training_log(path)
    assert followed.log().steps == 40


def test_bars_that_begin_anew_with_each_epoch_are_one_run(tmp_path: Path) -> None:
    for title in ("Epoch {epoch}: ", "", "Training: "):
        lines = []
        for epoch in range(3):
            lines += [
                f"\r{title.format(epoch=epoch)} {2 * n}%|#  | {n}/50 "
                f"[{2 * n // 60:02d}:{2 * n % 60:02d}<01:00,  2.00s/it, loss=2.5]"
                for n in range(1, 51)
            ]
        log = reading(tmp_path, "".join(lines) + "\n")
        assert log.steady_step_time_s == pytest.approx(2.0, rel=0.01)
        assert (log.steps, log.restarts, log.stalls) == (150, 0, 0)


def test_a_bar_and_an_entry_on_one_line_are_one_step(tmp_path: Path) -> None:
    lines = [
        f"Train: {n}%|#  | {n}/60 [{42 * n // 60:02d}:{42 * n % 60:02d}<41:47, 42.00s/it]"
        f"{{'loss': '{3 - n / 60:.3f}', 'epoch': '0.1', 'global_step/max_steps': '{n}/60', "
        "'elapsed_time': '43s', 'memory(GiB)': 31.5}"
        for n in range(1, 31)
    ]
    log = reading(tmp_path, "\n".join(lines) + "\n")
    assert (log.framework, log.steps, log.loss) == ("transformers", 30, 2.5)
    assert log.steady_step_time_s == pytest.approx(42.0, rel=0.01)


def test_a_profiled_step_is_no_stall(tmp_path: Path) -> None:
    lines = written("maxtext", RUN).splitlines()
    lines[20] = lines[20].replace("seconds: 5", "seconds: 25").replace("seconds: 4", "seconds: 25")
    lines.insert(20, "Capture range started in the application.")
    log = reading(tmp_path, "\n".join(lines))
    assert (log.stalls, log.pauses) == (0, 1)


def test_broken_lines_are_an_answer_too(tmp_path: Path) -> None:
    """Lines of every form with something else in the middle: JSON without nan, never an error."""
    random_ = random.Random(4)
    wrong = ("", "nan", "inf", "-1", "9" * 30, ",", ".", "/", "[", "]", "|", "\x00", "1e400")
    base = [line for name in FORMS for line in written(name, RUN).splitlines()]
    for _ in range(150):
        lines = []
        for line in random_.choices(base, k=25):
            at = random_.randrange(len(line) + 1)
            lines.append(line[:at] + random_.choice(wrong) + line[at + random_.randrange(3) :])
        log = reading(tmp_path, "\n".join(lines))
        json.dumps(log_data(log), allow_nan=False)
