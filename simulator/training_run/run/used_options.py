"""`used_options`: the options of a run in addition to its parallel axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.training_run.run.training_run import TrainingRun, setting_of
from simulator.values.degrees import AXIS_ORDERS

# Name of each option, its text, and the fields of a run without it.
_WITHOUT: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "compression": ("compression of gradients", {"compression": ""}),
    "local_steps": ("local steps", {"local_steps": 1, "local_workers": 1}),
    "lora": ("low-rank adapters", {"lora": False, "frozen_type": ""}),
    "wide_layers": ("layers that stay in bf16", {"wide_layers": 0}),
    "gradient_reduction": ("precision of the sum of gradients", {"gradient_reduction": ""}),
    "optimizer_offload": ("optimizer in host memory", {"optimizer_offload": False}),
    "activation_offload": ("activations in host memory", {"activation_offload": 0.0}),
    "frozen_type": ("frozen weights in few bits", {"frozen_type": ""}),
    "optimizer": ("an optimizer other than AdamW", {"optimizer": USUAL_OPTIMIZER}),
    "document_length": ("attention within documents only", {"document_length": 0.0}),
    "pipeline_layout": ("a layout of pipeline stages", {"pipeline_layout": ""}),
    "dp_replicate": ("hybrid sharding of states (HSDP)", {"dp_replicate": 1}),
    "axis_order": ("order of ranks", {"axis_order": AXIS_ORDERS[0]}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedOption:
    """An option of a run that is not at its default.

    values   fields of TrainingRun that differ from their defaults
    without  the defaults of all fields of the option
    """

    name: str
    words: str
    values: Mapping[str, object]
    without: Mapping[str, object]


def used_options(run: TrainingRun) -> tuple[UsedOption, ...]:
    """The options that the run uses."""
    found = []
    for name, (words, without) in _WITHOUT.items():
        used = {key: setting_of(run, key) for key in without}
        if used == dict(without) or setting_of(run, name) in ("", "fp32"):
            continue
        differing = {key: value for key, value in used.items() if value != without[key]}
        found.append(UsedOption(name=name, words=words, values=differing, without=without))
    return tuple(found)
