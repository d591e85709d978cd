"""Logs in the form and with the step times of public ones; all other words and figures are ours.

address  where the public log stands, read 2026-11-22;  step_time_s  what a person reads off it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GITHUB = "https://github.com/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicFigures:
    address: str
    framework: str | None
    text: str
    step_time_s: float
    steps: int
    resumed: bool | None = True
    stalls: int = 0


def _megatron(first: int, times_ms: Sequence[float], *, every: int = 1, clocks: bool = True) -> str:
    lines, second = [], 0.0
    for number, time_ms in enumerate(times_ms):
        second += every * time_ms / 1e3
        minutes, rest = divmod(int(second), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f" [2030-01-01 {hours:02d}:{minutes:02d}:{rest:02d}]" if clocks else ""
        lines.append(
            f"{clock} iteration {first + every * number:8d}/{90000:8d} | consumed samples: "
            f"{7:12d} | elapsed time per iteration (ms): {time_ms:.1f} | learning rate: 1.0E-05 | "
            f"global batch size:   128 | lm loss: 2.0E+00 | grad norm: 1.1 |"
        )
    return "\n".join(lines)


def _titan(steps: Sequence[int], clocks: Sequence[str], ranks: int = 1) -> str:
    return "\n".join(
        f"[titan] 2030-01-01 {clock} - root - INFO - step: {step:2d}  loss:  5.00000  "
        "grad_norm: 1.0000  memory: 40.00GiB(50.00%)  tps: 5,000  tflops: 300.00  mfu: 30.00%"
        for step, clock in zip(steps, clocks, strict=True)
        for _ in range(ranks)
    )


def _deepspeed(steps: Sequence[int], clocks: Sequence[str]) -> str:
    return "\n".join(
        f"[2030-01-01 {clock}] [INFO] [logging.py:69:log_dist] [Rank 0] step={step}, skipped=0, "
        "lr=[5e-05], mom=[[0.9, 0.999]]"
        for step, clock in zip(steps, clocks, strict=True)
    )


def _nanotron(first: int, times: Sequence[str]) -> str:
    return "\n".join(
        f"01/01/2030 00:00:00 [INFO|DP=0|PP=0|TP=0|host-1]: iteration: {first + number} / 400000 | "
        f"consumed_tokens: 1.5G | elapsed_time_per_iteration_ms: {time} | tokens_per_sec: 20K | "
        "tokens_per_sec_per_gpu: 10K | global_batch_size: 64 | lm_loss: 2.5 | lr: 1e-05"
        for number, time in enumerate(times)
    )


def _maxtext(first: int, times: Sequence[float]) -> str:
    return "\n".join(
        f"completed step: {first + number}, seconds: {time:.3f}, TFLOP/s/device: 40.000, "
        "Tokens/s/device: 4000.000, loss: 2.000"
        for number, time in enumerate(times)
    )


PUBLIC = (
    PublicFigures(
        address=f"{GITHUB}NVIDIA/Megatron-LM/issues/756",
        framework="megatron-lm",
        text=_megatron(71, (5361.6, 5470.7, 5829.9)),
        step_time_s=5.4707,
        steps=3,
    ),
    PublicFigures(
        address=f"{GITHUB}epfLLM/Megatron-LLM/issues/11",
        framework="megatron-lm",
        text=_megatron(122, (86545.2, 87871.6, 89474.8, 89075.2, 89692.9), clocks=False),
        step_time_s=89.0752,
        steps=5,
    ),
    PublicFigures(
        address=f"{GITHUB}NVIDIA-NeMo/Megatron-Bridge/pull/841",
        framework="megatron-bridge",
        text=_megatron(10, (13212.7, 14260.3), every=10) + "\nGPU utilization: 50.0TFLOP/s/GPU",
        step_time_s=13.737,
        steps=20,
        resumed=False,
    ),
    PublicFigures(
        address=f"{GITHUB}pytorch/torchtitan/pull/2389",
        framework="torchtitan",
        text=_titan((4, 5), ("19:46:17,508", "19:46:19,145"), ranks=8),
        step_time_s=1.637,
        steps=2,
    ),
    PublicFigures(
        address=f"{GITHUB}pytorch/torchtitan/pull/3393",
        framework="torchtitan",
        text=_titan(
            range(14, 22),
            [
                "16:04:46,338",
                "16:04:47,456",
                "16:04:48,577",
                "16:04:49,702",
                "16:04:50,821",
                "16:04:51,942",
                "16:04:53,069",
                "16:04:54,191",
            ],
        ),
        # 7.853 s in 7 steps
        step_time_s=1.1219,
        steps=8,
    ),
    PublicFigures(
        address=f"{GITHUB}pytorch/torchtitan/pull/1287",
        framework="torchtitan",
        text=_titan(
            range(200, 251, 10),
            [
                "22:30:50,322",
                "22:31:04,970",
                "22:31:18,934",
                "22:31:32,895",
                "22:31:46,869",
                "22:32:00,846",
            ],
        ),
        # 13.964, 13.961, 13.974 and 13.977 s for ten steps each; the first ten hold a profile
        step_time_s=1.397,
        steps=60,
    ),
    PublicFigures(
        address=f"{GITHUB}deepspeedai/DeepSpeed/issues/1825",
        framework="deepspeed",
        text=_deepspeed((40, 50, 60), ("02:06:58,985", "02:07:14,130", "02:07:29,274")),
        step_time_s=1.5145,
        steps=30,
    ),
    PublicFigures(
        address=f"{GITHUB}huggingface/nanotron/pull/23",
        framework="nanotron",
        text=_nanotron(991, ("45", "41.2", "39.4", "43.2")),
        step_time_s=0.0422,
        steps=4,
    ),
    PublicFigures(
        address=f"{GITHUB}huggingface/nanotron/issues/390",
        framework="nanotron",
        text=_nanotron(327281, ("11.5K", "11.5K", "11.5K", "11.5K")),
        step_time_s=11.5,
        steps=4,
    ),
    PublicFigures(
        address=f"{GITHUB}AI-Hypercomputer/maxtext/issues/8",
        framework="maxtext",
        text=_maxtext(15107, (2.167, 2.164, 2.166)),
        step_time_s=2.166,
        steps=3,
    ),
    PublicFigures(
        address=f"{GITHUB}NVIDIA-BioNeMo/bionemo-recipes/pull/740",
        framework="nemo",
        text="\n".join(
            f"Training epoch 0, iteration {120 + number}/149 | lr: 1e-05 | consumed_samples: 9 | "
            f"global_batch_size: 1 | global_step: {120 + number} | reduced_train_loss: 1.0 | "
            f"train_step_timing in s: {time}"
            for number, time in enumerate((0.03146, 0.03163, 0.03215, 0.03157, 0.0317, 0.03147))
        ),
        step_time_s=0.0316,
        steps=6,
    ),
    PublicFigures(
        address=f"{GITHUB}karpathy/nanoGPT/issues/110",
        framework=None,
        text="\n".join(
            f"iter {1631 + number}: loss 3.9000, time {time}ms"
            for number, time in enumerate(
                (561.94, 563.15, 562.11, 562.80, 561.50, 562.73, 562.19, 562.74, 562.66, 567.31)
            )
        ),
        step_time_s=0.5627,
        steps=10,
    ),
    PublicFigures(
        address=f"{GITHUB}bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md",
        framework="megatron-deepspeed",
        text="\n".join(
            f"[default7]: iteration {step:8d}/  115311 | consumed samples: 9 | elapsed time per "
            f"iteration (s): {time} | global batch size:  2048 | lm loss: 1.9E+00 | samples per "
            "second: 9.5 | TFLOPs: 145.00 |"
            for step, time in ((94768, 215.82), (94769, 215.99))
        ),
        step_time_s=215.9,
        steps=2,
    ),
    PublicFigures(
        address=f"{GITHUB}huggingface/transformers/issues/14531",
        framework="transformers",
        text="\n".join(
            f"\r  8%|###       | {step}/24128 [1:52:{second:02d}<20:27:23,  3.33s/it]\n"
            "{'loss': 1.0, 'learning_rate': 0.001, 'epoch': 0.08}"
            for step, second in ((1997, 2), (1998, 6), (1999, 9))
        ),
        step_time_s=3.33,
        steps=3,
    ),
)
