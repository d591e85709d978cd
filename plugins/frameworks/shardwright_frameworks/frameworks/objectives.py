"""Objectives that need other models or pairs of sequences; this additional work is not modeled."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.shell.text_marks import Place

_REFERENCE = "the reference model is not counted"
NOT_COUNTED = {
    "dpo": "the reference model and the pairs of sequences are not counted",
    "ipo": "the reference model and the pairs of sequences are not counted",
    "kto": _REFERENCE,
    "asft": _REFERENCE,
    "rm": "the pairs of sequences are not counted",
    "orpo": "the pairs of sequences are not counted",
    "simpo": "the pairs of sequences are not counted",
    "kd": "the teacher model is not counted",
    "gkd": "the teacher model and generation are not counted",
    "distillation": "the teacher model and generation are not counted",
    **dict.fromkeys(
        ("ppo", "grpo", "gspo", "rloo"),
        "only the trained policy is read: other models and generation are not counted",
    ),
}
"""Name of an objective -> the work that is not counted, as text."""


def report_objective(word: str | None, option: str, place: Place, collected: Collected) -> None:
    """Report the additional work of an objective compared with plain training on sequences.

    word  the framework's name of the objective (`sft`, `dpo`); plain training is not reported
    """
    plain = (word or "").lower().replace("-", "_").rpartition("_")[2]
    if plain in ("", "sft", "pt", "pretrain", "none", "false"):
        return
    why = NOT_COUNTED.get(plain, "its work in addition to plain training is not counted")
    if not any(each.why == f"{word}: {why}" for each in collected.unresolved):  # by its program
        collected.report_unresolved(option, f"{word}: {why}", place)
