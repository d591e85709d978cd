"""`judge_memory`: whether a configuration fits in memory, and a change that makes it fit."""

from __future__ import annotations

import re

from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_bytes, format_percent
from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.changes.flags import change_words
from shardwright_frameworks.changes.ranked_changes import priced_changes
from shardwright_frameworks.changes.single_change import single_changes
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.recipes.finding import Finding, Verdict
from simulator.memory.footprint import footprint

# Intervals are of 90 %: a run does not fit if all of its interval is above the device's memory.
_SURE = 0.95
_LIKELY = 0.5
# Unread keys that lower the peak: offloading, losses without logits, low-bit weights and states.
_SAVERS = re.compile(
    r"offload|liger_kernel|cross_entropy|plugins|load_in_[48]bit|galore|apollo|badam|adam_mini"
)
# A useful change lowers the required memory by 3 % or more.
_LESS = 0.97
# Without DeepSpeed or FSDP, gradients and states have the type of the loaded weights.
_BY_WEIGHTS = ("ms-swift", "transformers", "axolotl", "llama-factory")


def judge_memory(run: ImportedRun, made: PredictedRow) -> tuple[Finding, ...]:
    """One finding if the peak is likely above the device's memory; none without a predicted
    peak."""
    assert made.run is not None
    chance = made.out_of_memory_probability
    if chance is None:
        why = made.why_no_memory
        return (Finding(verdict=Verdict.NOT_JUDGED, text=why),) if why else ()
    if chance < _LIKELY:
        return ()
    peak, device = made.shown_memory_bytes, get_device(made.run.device)
    assert peak is not None
    text = (
        f"predicted peak {format_bytes(peak.value)} [{format_bytes(peak.low)} - "
        f"{format_bytes(peak.high)}] of {format_bytes(device.usable_bytes)} on {device.name}, out "
        f"of memory with probability {format_percent(chance)}"
    )
    # Peaks of adapters and of RL actors were not measured.
    measured = run.framework not in ("verl", "nemo-rl") and not run.model.lora_rank
    if run.framework in _BY_WEIGHTS and not made.run.zero_stage and made.run.precision != "fp32":
        measured = False
        text += "; states of weights that are loaded in 16 bits take half"
    # The prediction does not count the memory that these save.
    saving = [each.option for each in run.unused if _SAVERS.search(each.option.lower())]
    if saving:
        text += f"; what {', '.join(saving)} saves is not in it"
    sure = chance >= _SURE and measured and not saving
    verdict = Verdict.DOES_NOT_FIT if sure else Verdict.MAY_NOT_FIT
    return (Finding(verdict=verdict, text=text, patch=_patch(run, made)),)


def _patch(run: ImportedRun, made: PredictedRow) -> str:
    """The fastest single change that fits and needs less memory."""
    assert made.run is not None
    room = float(get_device(made.run.device).usable_bytes)
    now = footprint(made.run).needed_bytes
    for priced in priced_changes(made.run, single_changes(made.run)):
        if priced.needed_bytes is not None and priced.needed_bytes <= min(room, _LESS * now):
            return change_words(run, priced.change)
    return "no single change fits; more devices or a smaller model do"
