"""Pins that leave nothing: their conflicts are smallest ones, and the proposed values work."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.axes import AXES, NO_PIPELINE, Axes
from planner.blocks.answer import block_rules, legal_cells
from planner.layout.layout_question import context_of
from planner.layout.prices import legal_layouts
from planner.run_option import RequestedOptions
from planner.space import LayoutContext
from profiles.errors import InputError
from tests.planner.layout.asked import question
from tests.shardwright.typed_axes import axes_of_texts

BLOCKS = LayoutContext(
    rules=block_rules(),
    blocks=True,
    may_idle=False,
    num_devices=12,
    node_devices=6,
    num_layers=7,
    tp_degrees=(1, 2, 3, 6),
    global_batch=24,
)


def layouts(stack: str, model: str = "llama-3.1-8b", batch: int = 32) -> LayoutContext:
    return context_of(question(model, stack=stack, batch=batch))[1]


GROUNDS = {
    "megatron": layouts("megatron-core"),
    "torch": layouts("torch", batch=24),
    "torchtitan": layouts("torchtitan"),
    "deepspeed": layouts("megatron-deepspeed"),
    "experts": layouts("megatron-core", "mixtral-8x7b"),
    "61 layers": replace(layouts("megatron-bridge", "deepseek-v3", batch=48), predictor_units=0),
    "61 layers and predictors": layouts("megatron-bridge", "deepseek-v3", batch=48),
    "blocks": BLOCKS,
}
COUNTS = (1, 2, 3, 4, 5, 7, 8, 16, 32)
PINS = {
    **dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "vpp", "micro_batch"), COUNTS),
    "zero": (0, 1, 2, 3),
    "schedule": (NO_PIPELINE, "1f1b", "gpipe", "interleaved"),
    "recompute": ("none", "attention", "full"),
}


def refusal(axes: Axes, context: LayoutContext) -> str:
    """The message of the enumeration, "" if the pins leave something."""
    try:
        legal_cells(axes, context) if context.blocks else legal_layouts(axes, context)
    except InputError as error:
        return str(error)
    return ""


def pins_of(words: str) -> dict[str, str]:
    """The pins that a part of a message names."""
    pairs = re.findall(r"--([a-z-]+) ([\w,-]+)", words)
    named = ((flag.replace("-", "_"), value) for flag, value in pairs)
    return {axis: value for axis, value in named if axis in AXES}


def conflicts(message: str) -> list[tuple[dict[str, str], str]]:
    """The pins and the proposal of each conflict of a message."""
    sentences = re.findall(
        r"(?:^|(?<=\. ))(--(?:(?!\. --).)*?): .*?\. Use (.*?)\.(?= --|$)", message
    )
    return [(pins_of(pins), proposal) for pins, proposal in sentences]


def proposals(text: str) -> list[dict[str, str | int]]:
    """Changes that `--tp 2 or 4, --pp 3 --vpp 3, or --global-batch 8` proposes."""
    text = re.sub(r" or (?!--|\d+ devices)", ", ", text).replace(", or ", ", ")
    found: list[dict[str, str | int]] = []
    flag = ""
    for part in text.split(", "):
        if part.endswith(" devices (--on)"):
            found.append({"num_devices": int(part.split()[0])})
        elif part.startswith("--global-batch"):
            found.append({"global_batch": int(part.split()[1])})
        elif part.startswith("--"):
            found.append(dict(pins_of(part)))
            flag = part.split()[0][2:].replace("-", "_")
        else:
            found.append({flag: part})
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(sorted(GROUNDS)),
    st.dictionaries(st.sampled_from(sorted(PINS)), st.integers(0, 8), min_size=1, max_size=5),
)
def test_conflicts_are_smallest_and_proposals_work(name: str, drawn: dict[str, int]) -> None:
    context = GROUNDS[name]
    if context.blocks:
        drawn = {axis: index for axis, index in drawn.items() if axis not in ("cp", "ep")}
    pins = {axis: str(PINS[axis][index % len(PINS[axis])]) for axis, index in drawn.items()}
    message = refusal(axes_of_texts(pins), context)
    if not message:
        return
    found = conflicts(message)
    assert found, message
    assert "fewer of these options" not in message
    for named, proposal in found:
        assert named.items() <= pins.items()
        assert refusal(axes_of_texts(named), context), message
        if set(named) != {"pp", "vpp"}:  # pp is named with vpp for its meaning
            for axis in named:
                less = {other: value for other, value in named.items() if other != axis}
                if less:
                    assert not refusal(axes_of_texts(less), context), (message, axis)
        others = [axis for each, _ in found if each is not named for axis in each]
        kept = {axis: value for axis, value in pins.items() if axis not in others}
        for change in proposals(proposal):
            sizes = {k: v for k, v in change.items() if k in ("num_devices", "global_batch")}
            changed = {k: str(v) for k, v in change.items() if k not in sizes}
            again = refusal(axes_of_texts(kept | changed), replace(context, **sizes))
            assert not again, (message, change, again)


def test_a_schedule_takes_twice_the_devices_of_the_other_pins() -> None:
    message = refusal(axes_of_texts({"dp": "16", "schedule": "interleaved"}), GROUNDS["megatron"])
    assert message.endswith("Use --dp 8, --schedule none, or 32 devices (--on).")


def test_the_proposed_batch_has_whole_rounds_of_micro_batches() -> None:
    """36 sequences on 4 replicas are 9 micro-batches, which 4 ranks do not divide: 8 are near."""
    pins = {"pp": "4", "vpp": "2", "dp": "4", "micro_batch": "1", "schedule": "interleaved"}
    message = refusal(axes_of_texts(pins), layouts("megatron-core", batch=36))
    assert message.endswith("or --global-batch 32.")


def test_what_the_schedule_that_hides_all_to_alls_needs() -> None:
    pins = {"schedule": "interleaved-overlap"}
    rule = "interleaved-overlap hides all-to-alls of experts: it needs ep of 2 or more"
    assert rule in refusal(axes_of_texts(pins), GROUNDS["megatron"])
    experts = GROUNDS["experts"]
    assert refusal(axes_of_texts(pins), experts) == ""
    for more in ({"ep": "1"}, {"recompute": "full"}):
        assert rule in refusal(axes_of_texts(pins | more), experts)


def test_chunks_of_a_prime_number_of_layers() -> None:
    message = refusal(axes_of_texts({"pp": "4", "vpp": "4"}), GROUNDS["61 layers"])
    assert message == (
        "--pp 4 with --vpp 4: pp x vpp, here 16, must cut 61 layers into equal chunks, or 63 with "
        "the embedding and the head as one each. Use --vpp 1, or --pp 3 --vpp 3."
    )


def test_chunks_of_layers_that_predict_further_tokens() -> None:
    """A layer, its logits and the loss count as layers: 64 are cut."""
    context = GROUNDS["61 layers and predictors"]
    for pins in ({"pp": "4", "vpp": "4"}, {"pp": "2", "vpp": "8"}, {"pp": "16", "vpp": "2"}):
        assert not refusal(axes_of_texts(pins), context)
    message = refusal(axes_of_texts({"pp": "4", "vpp": "3"}), context)
    assert message == (
        "--pp 4 with --vpp 3: pp x vpp, here 12, must cut 61 layers into equal chunks, or 64 with "
        "the layers and logits that predict further tokens and the loss. Use --vpp 2 or 4."
    )


def test_of_pins_freed_together_the_fewest_are_named() -> None:
    """tp and vpp of 1 are as near with cp free as with the cp of 8 that they leave room for."""
    pins = {"schedule": "gpipe", "tp": "2", "cp": "8", "vpp": "4"}
    message = refusal(axes_of_texts(pins), GROUNDS["torchtitan"])
    assert message.endswith("Use --tp 1 --vpp 1.")


def test_two_conflicts_are_both_named() -> None:
    message = refusal(axes_of_texts({"tp": "5", "micro_batch": "7"}), GROUNDS["megatron"])
    assert [pins for pins, _ in conflicts(message)] == [{"tp": "5"}, {"micro_batch": "7"}]


def test_options_that_the_pins_exclude() -> None:
    asked = question(
        stack="torch", options=RequestedOptions(compressions=("powersgd-4",)), zero=(2,)
    )
    with pytest.raises(InputError, match=r"^--zero 2: none of the requested options .* --zero 1"):
        legal_layouts(asked.space, context_of(asked)[1])


def test_experts_that_a_stage_does_not_hold() -> None:
    message = refusal(axes_of_texts({"ep": "8", "pp": "4"}), GROUNDS["experts"])
    assert message == (
        "--ep 8 with --pp 4: ep must divide the tp x cp x dp ranks of a stage, and tp x cp x pp x "
        "dp may use the 16 devices of --on at most. Use --ep 4, --pp 2, or 32 devices (--on)."
    )
