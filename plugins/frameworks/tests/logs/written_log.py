"""Logs of training runs that never ran, in the forms of the frameworks, with their truth.

The forms were learned from the frameworks' sources and from logs in their issue trackers; every
line here is our own.
"""

from __future__ import annotations

import datetime
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SEQ, DEVICES = 4096, 16
_BEGIN = datetime.datetime(2025, 3, 14, 9, 26, 53, 589000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRun:
    """What happens in the run.

    attempts     (first step, last step) each; the second and later ones are restarts
    base_s       seconds of a steady step, with `noise` around it (relative, uniform)
    warm_up      factors of the first steps of every attempt
    stalls       step -> factor;  saves  a checkpoint every so many steps, of save_s seconds
    every        steps between two lines
    """

    attempts: tuple[tuple[int, int], ...] = ((1, 60),)
    base_s: float = 5.0
    noise: float = 0.01
    warm_up: tuple[float, ...] = (8.0, 1.6)
    stalls: dict[int, float] = field(default_factory=dict)
    saves: int = 0
    save_s: float = 20.0
    every: int = 1
    batch: int = 256
    seed: int = 0

    @property
    def last(self) -> int:
        return self.attempts[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line to be printed: step, mean seconds since the last one, clock, loss."""

    step: int
    mean_s: float
    clock: datetime.datetime
    elapsed_s: float
    rate_s: float
    loss: float
    run: WrittenRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """`start`, `resume` or `save`, with the step it is of."""

    what: str
    step: int
    clock: datetime.datetime


def steady_s(run: WrittenRun) -> float:
    """The median of the steps that are neither warm-up nor stalls."""
    took: list[float] = []
    for _ in happenings(run, took):
        pass
    return statistics.median(took)


def happenings(run: WrittenRun, plain: list[float] | None = None) -> Iterator[Line | Between]:
    """What is to be printed, in its order; a checkpoint is no part of a step. `plain` takes the
    seconds of plain steps."""
    random_ = random.Random(run.seed)
    clock = _BEGIN
    for number, (first, last) in enumerate(run.attempts):
        yield Between(what="start", step=first, clock=clock)
        if first > 1:
            yield Between(what="resume", step=first - 1, clock=clock)
        clock += datetime.timedelta(seconds=40)
        begin, spent, since, jumped = clock, 0.0, 0, first - 1
        smooth_steps = smooth_s = 0.0
        for step in range(first, last + 1):
            factor = 1.0 + run.noise * (2.0 * random_.random() - 1.0)
            if step - first < len(run.warm_up):
                factor *= run.warm_up[step - first]
            if number == 0:
                factor *= run.stalls.get(step, 1.0)
            took = run.base_s * factor
            usual = step - first >= len(run.warm_up) and not (number == 0 and step in run.stalls)
            if plain is not None and usual:
                plain.append(took)
            clock += datetime.timedelta(seconds=took)
            spent, since = spent + took, since + 1
            if step % run.every == 0 or step == 1:
                # A bar jumps to where a checkpoint was loaded.
                smooth_steps = 0.3 * (since + jumped) + 0.7 * smooth_steps
                jumped = 0
                smooth_s = 0.3 * spent + 0.7 * smooth_s
                yield Line(
                    step=step,
                    mean_s=spent / since,
                    clock=clock,
                    elapsed_s=(clock - begin).total_seconds(),
                    rate_s=smooth_s / smooth_steps,
                    loss=11.0 - 2.0 * step / (step + 50.0),
                    run=run,
                )
                spent, since = 0.0, 0
            if run.saves and step % run.saves == 0:
                yield Between(what="save", step=step, clock=clock)
                clock += datetime.timedelta(seconds=run.save_s)


def _stamp(clock: datetime.datetime) -> str:
    return clock.strftime("%Y-%m-%d %H:%M:%S,") + f"{clock.microsecond // 1000:03d}"


def megatron(what: Line | Between) -> str:
    if isinstance(what, Between):
        return {
            "start": f"using world size: {DEVICES}\n  seq_length ...................... {SEQ}\n"
            "------------------------ end of arguments ------------------------",
            "resume": f"  successfully loaded checkpoint from /ckpt at iteration {what.step}",
            "save": f"saving checkpoint at iteration {what.step:7d} to /ckpt in torch_dist format",
        }[what.what]
    return (
        f" [{what.clock:%Y-%m-%d %H:%M:%S}] iteration {what.step:8d}/{10000:8d} | consumed samples:"
        f" {what.step * what.run.batch:12d} | elapsed time per iteration (ms): "
        f"{what.mean_s * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): {900 / what.mean_s:.1f} | "
        f"learning rate: 3.0E-04 | global batch size: {what.run.batch:5d} | lm loss: "
        f"{what.loss:.6E} | loss scale: 1.0 | grad norm: 1.012 | number of nan iterations:   0 |"
    )


def torchtitan(what: Line | Between) -> str:
    if isinstance(what, Between):
        words = {
            "start": "Starting job: Llama 3 training",
            "resume": f"Loading the checkpoint at step {what.step}.",
            "save": "Saving the checkpoint (or staging if async is enabled).",
        }[what.what]
        return f"[titan] {_stamp(what.clock)} - root - INFO - {words}"
    tokens = what.run.batch * SEQ / DEVICES / what.mean_s
    return (
        f"[titan] {_stamp(what.clock)} - root - INFO - step: {what.step:2d}  loss: {what.loss:8.5f}"
        f"  grad_norm: 1.2031  memory: 66.91GiB(84.51%)  tps: {round(tokens):,}  tflops: 314.71  "
        "mfu: 31.82%"
    )


def deepspeed(what: Line | Between) -> str:
    if isinstance(what, Between):
        words = {
            "start": "DeepSpeed info: version=0.15.1, git-hash=unknown, git-branch=unknown",
            "resume": f"[Torch] Loading checkpoint from /ckpt/global_step{what.step}/x.pt...",
            "save": f"[Torch] Saving /ckpt/global_step{what.step}/mp_rank_00_model_states.pt "
            "checkpoint...",
        }[what.what]
        return f"[{_stamp(what.clock)}] [INFO] [logging.py:96:log_dist] [Rank 0] {words}"
    stamp = _stamp(what.clock)
    return (
        f"[{stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] step={what.step}, skipped=0, "
        f"lr=[3e-05], mom=[(0.9, 0.999)]\n[{stamp}] [INFO] [timer.py:260:stop] "
        f"epoch=0/micro_step={what.step * 4}/global_step={what.step}, RunningAvgSamplesPerSec=7.8, "
        f"CurrSamplesPerSec={what.run.batch / what.mean_s}, MemAllocated=59.65GB, "
        "MaxMemAllocated=63.31GB"
    )


def trainer(what: Line | Between) -> str:
    if isinstance(what, Between):
        return {
            "start": "***** Running training *****\n  Num examples = 24,000\n"
            "  Total train batch size (w. parallel, distributed & accumulation) = 128\n",
            "resume": f"  Continuing training from global step {what.step}",
            "save": f"Saving model checkpoint to out/checkpoint-{what.step}",
        }[what.what]
    clock, left = (_bar_clock(seconds) for seconds in (what.elapsed_s, 1000.0))
    fast = what.rate_s < 1.0
    rate = f"{1 / what.rate_s:5.2f}it/s" if fast else f"{what.rate_s:5.2f}s/it"
    return (
        f"\r {what.step / 100:3.0f}%|█▏        | {what.step}/10000 [{clock}<{left}, {rate}]\n"
        f"{{'loss': {what.loss:.4f}, 'grad_norm': 1.02, 'learning_rate': 2e-05, 'epoch': 0.1}}"
    )


def _bar_clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def nanotron(what: Line | Between) -> str:
    head = f"{what.clock:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: "
    if isinstance(what, Between):
        return (
            head
            + {
                "start": f"[Start training] datetime: {what.clock} | mbs: 4 | grad_accum: 8",
                "resume": f"Loading checkpoint from /ckpt/{what.step} (iteration {what.step})",
                "save": f"Saving checkpoint at /ckpt/{what.step}",
            }[what.what]
        )
    tokens = what.run.batch * SEQ
    return head + (
        f"iteration: {what.step} / 10000 | consumed_tokens: {_short(what.step * tokens)} | "
        f"elapsed_time_per_iteration_ms: {_short(what.mean_s * 1e3)} | tokens_per_sec: "
        f"{_short(tokens / what.mean_s)} | tokens_per_sec_per_gpu: "
        f"{_short(tokens / what.mean_s / DEVICES)} | global_batch_size: {what.run.batch} | lm_loss:"
        f" {what.loss:.3g} | lr: 0.0003 | model_tflops_per_gpu: 330 | grad_norm: 0.51"
    )


def maxtext(what: Line | Between) -> str:
    if isinstance(what, Between):
        return {
            "start": "System Information: Jax Version: 0.4.38",
            "resume": f"restoring from this run's directory step {what.step}",
            "save": f"saved a checkpoint at step {what.step}",
        }[what.what]
    tokens = what.run.batch * SEQ / DEVICES
    return (
        f"completed step: {what.step - 1}, seconds: {what.mean_s:.3f}, TFLOP/s/device: "
        f"{900 / what.mean_s:.3f}, Tokens/s/device: {tokens / what.mean_s:.3f}, total_weights: "
        f"196608, loss: {what.loss:.3f}"
    )


FORMS: dict[str, Callable[[Line | Between], str]] = {
    "megatron-lm": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "transformers": trainer,
    "nanotron": nanotron,
    "maxtext": maxtext,
}


def written(name: str, run: WrittenRun, *, ranks: tuple[str, ...] = ("",)) -> str:
    """The log of a run in one framework's form, each line once per rank with its prefix."""
    lines = []
    for what in happenings(run):
        for line in FORMS[name](what).split("\n"):
            lines += [f"{rank}{line}" for rank in ranks] if line else []
    return "\n".join(lines) + "\n"
