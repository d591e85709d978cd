"""Every rank of a plan on the fake accelerator: nothing lies elsewhere, the host waits for nothing,
nothing is left, and what is held and sent is what is priced.

A tensor that lies on another device fails in the walk itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from profiles.model.loaders import resolve_model
from simulator.values.plan import Plan, Recompute
from simulator.values.runnable import why_not_runnable_plan
from tests.executor.cases import (
    CNN_ENTRIES,
    GPT2_ENTRIES,
    LLAMA_ENTRIES,
    TINY_LLAMA,
    make_plan,
    write_models,
)
from tests.executor.fake_accelerator.plans import ALL, Case, plan_of, traced_for
from tests.executor.fake_accelerator.prices import (
    counted_messages,
    priced_messages,
    priced_peaks,
)
from tests.executor.fake_accelerator.walk import Walk
from tests.executor.fake_accelerator.walks import walks_of
from tests.executor.fake_accelerator.watch import Message

DEVICES = 8
NEAR = 0.03
"""Of the priced memory of a rank."""
MOST_WHILE_BUILT = 1.10
"""Of what a built rank holds, with its largest unit on top."""

# (kind, place) of what the host does in a step, and why it may.
ALLOWED: dict[tuple[str, str], str] = {}
_ALONE = "executor/rank.py:_accumulated"
_PIPED = tuple(
    f"executor/{place}"
    for place in (
        "torch_pipeline.py:backward_maybe_with_nosync",
        "torch_pipeline.py:step",
        "unit_gradients.py:watch",  # of a W
        "unit_gradients.py:done",
    )
)
_UP = "FSDP2 copies shards of weights up before a gather, from pinned memory, and waits for none"
_DOWN = "FSDP2 copies shards of gradients down, and waits for them at the end of the backward"
_TIED = "gradients of a weight that two stages share are summed on the device"
OFFLOADED = {
    **{("to device", place): _UP for place in (_ALONE, *_PIPED[:2])},
    **{("from device", place): _DOWN for place in (_ALONE, _PIPED[0], *_PIPED[2:])},
    ("on host", _ALONE): "FSDP2 adds the gradients of a second micro-batch, and waits for them",
    **{(kind, "executor/mesh.py:sum_over"): _TIED for kind in ("to device", "from device")},
    ("on host", "executor/rank.py:update"): "the optimizer steps",
}
"""The same of plans with an optimizer in host memory."""


def quick_plans(folder: Path) -> dict[str, Plan]:
    """Every schedule and ZeRO stage, tp, recomputation, both precisions, ties, hybrid sharding.

    As few layers as leave a stage with two: a walk takes seconds for each.
    """
    models = write_models(folder)
    full = Recompute.FULL

    def llama(name: str = "none", *, pp: int = 1, vpp: int = 1, **rest: object) -> Plan:
        layers = 1 + pp if vpp == 1 else 4
        path = folder / f"llama-{layers}.json"
        path.write_text(json.dumps({**TINY_LLAMA, "num_hidden_layers": layers}))
        entries = (*LLAMA_ENTRIES[: 1 + layers], LLAMA_ENTRIES[-1])
        return make_plan(str(path), entries, schedule=name, pp=pp, vpp=vpp, **rest)  # type: ignore[arg-type] # fields by name

    return {
        "zero-0": llama(dp=8),
        "zero-3-bf16": llama(dp=8, zero_stage=3, precision="bf16"),
        "hsdp-zero-3": llama(dp=8, dp_replicate=2, zero_stage=3),
        "hsdp-1f1b": llama("1f1b", pp=2, dp=4, dp_replicate=2, zero_stage=1),
        "tp-zero-1": llama(dp=4, tp=2, zero_stage=1),
        "cnn-zero-2": make_plan(models["cnn"], CNN_ENTRIES, dp=8, zero_stage=2),
        "1f1b-bf16": llama("1f1b", pp=2, dp=4, precision="bf16"),
        "gpipe-recompute": llama("gpipe", pp=2, dp=4, zero_stage=2, recompute=full),
        "interleaved-tp": llama("interleaved", pp=2, vpp=2, dp=2, tp=2, zero_stage=1),
        "zb-h1": llama("zb-h1", pp=2, dp=4, zero_stage=3, recompute=full),
        "zb-h2": llama("zb-h2", pp=2, dp=4),
        "zbv-tied": make_plan(
            models["gpt2"], GPT2_ENTRIES, pp=2, vpp=2, dp=4, zero_stage=3, schedule="zbv"
        ),
        "v-half-bf16": llama("v-half", pp=2, vpp=2, dp=4, zero_stage=1, precision="bf16"),
        "offload-zero-3": llama(dp=8, zero_stage=3, precision="bf16", optimizer_offload=True),
        "offload-zero-2": llama(dp=8, zero_stage=2, optimizer_offload=True),
        "offload-tied": make_plan(
            models["gpt2"],
            GPT2_ENTRIES,
            pp=2,
            dp=4,
            zero_stage=3,
            schedule="1f1b",
            optimizer_offload=True,
        ),
        "dualpipev": llama("dualpipev", pp=2, vpp=2, dp=4, zero_stage=2, micro_batches=4),
    }


def distinct(plan: Plan) -> list[int]:
    """One rank of each stage: replicas and shares do the same."""
    return [plan.degrees.rank(pp=rank) for rank in range(plan.degrees.pp)]


@cache
def quick(name: str) -> dict[int, Walk | str]:
    """The walks of one rank of each stage of a quick plan."""
    with TemporaryDirectory() as path:
        folder = Path(path)
        plan = quick_plans(folder)[name]
        (walks,) = walks_of([(plan, resolve_model(plan.model), distinct(plan))], folder)
        return walks


@lru_cache(maxsize=2)
def walked(case: Case) -> tuple[Plan, dict[int, Walk | str], list[float], list[dict[str, float]]]:
    """The plan, the walk of every rank, and what is priced: peaks by pipeline rank, messages by
    rank."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        traced, spec = traced_for(case, folder)
        plan = plan_of(case, traced)
        assert not why_not_runnable_plan(plan)
        (walks,) = walks_of([(plan, spec, range(DEVICES))], folder)
        messages = [priced_messages(plan, traced, rank) for rank in range(DEVICES)]
        named = [{" ".join(key): size for key, size in each.items()} for each in messages]
        return plan, walks, priced_peaks(plan, traced), named


def errors(walks: dict[int, Walk | str]) -> dict[int, str]:
    return {rank: walk for rank, walk in walks.items() if isinstance(walk, str)}


def whole(walks: dict[int, Walk | str]) -> dict[int, Walk]:
    assert not errors(walks)
    return {rank: walk for rank, walk in walks.items() if isinstance(walk, Walk)}


def host_work(walks: Sequence[Walk], *, offloaded: bool = False) -> list[str]:
    """What the host did that it may not."""
    allowed = OFFLOADED if offloaded else ALLOWED
    found = {
        (thing.kind, thing.where)
        for walk in walks
        for thing in walk.found
        if thing.where != "model" and (thing.kind, thing.where) not in allowed
    }
    return sorted(f"{kind} in {where}" for kind, where in found)


FLAGS_BYTES = 1024
"""Flags of which gradients there are, kept from step to step (replica_gradients._as_tensor)."""

RESIDENT = (
    "zero-0",
    "zero-3-bf16",
    "hsdp-zero-3",
    "hsdp-1f1b",
    "tp-zero-1",
    "cnn-zero-2",
    "1f1b-bf16",
    "gpipe-recompute",
    "interleaved-tp",
    "zb-h1",
    "zb-h2",
    "zbv-tied",
    "v-half-bf16",
    "dualpipev",
)
OFFLOADING = ("offload-zero-3", "offload-zero-2", "offload-tied")
QUICK = (*RESIDENT, *OFFLOADING)
IN_VALIDATE = ("zero-0", "hsdp-1f1b", "cnn-zero-2", "gpipe-recompute", "offload-zero-2")
"""Walked by make validate: the other plans run every line of the executor that these run."""


def _each(names: Sequence[str]) -> pytest.MarkDecorator:
    """The test for each of the plans."""
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=slow) if n in IN_VALIDATE else n for n in names]
    )


@_each(QUICK)
def test_a_step_runs_on_the_device(name: str) -> None:
    assert not errors(quick(name))


@_each(RESIDENT)
def test_the_host_waits_for_nothing(name: str) -> None:
    walks = list(whole(quick(name)).values())
    assert not host_work(walks)
    assert not any(walk.waits for walk in walks)


@_each(OFFLOADING)
def test_an_optimizer_in_host_memory_has_the_host_wait_for_gradients_alone(name: str) -> None:
    """Once for each gradient, which a second micro-batch is added to on the host."""
    for walk in whole(quick(name)).values():
        assert not host_work([walk], offloaded=True)
        places = Counter((thing.kind, thing.where) for thing in walk.found)
        assert places["on host", "executor/rank.py:update"] == 1
        down = sum(places["from device", place] for place in (_ALONE, *_PIPED))
        assert walk.waits == down - places["on host", _ALONE] > 0


@_each(OFFLOADING)
def test_shards_are_not_on_the_device(name: str) -> None:
    """Between steps it has inputs and buffers, less than 1 % of the weights' 50 KB and more."""
    for walk in whole(quick(name)).values():
        assert walk.built < 4096


@_each(QUICK)
def test_nothing_is_left_of_a_rank(name: str) -> None:
    for walk in whole(quick(name)).values():
        assert not walk.alive
        assert walk.left < FLAGS_BYTES


@_each(QUICK)
def test_a_rank_is_built_in_what_it_holds(name: str) -> None:
    """These models are a few kilobytes: what a unit's shares are padded to is as large as it."""
    for walk in whole(quick(name)).values():
        assert walk.build_peak <= MOST_WHILE_BUILT * walk.built + 2 * walk.unit


@_each(QUICK)
def test_gradients_are_sent_before_the_backward_is_over(name: str) -> None:
    for walk in whole(quick(name)).values():
        first = next(m for m in walk.messages if _sums_gradients(m))
        running = re.fullmatch(r"\d+[BIW]\d+", first.during)
        assert running or first.backward < walk.backwards - 1


@pytest.mark.parametrize("name", ["zb-h1", "zbv-tied"])
def test_zero_3_gathers_for_every_forward_and_backward_of_a_pipeline_and_no_more(name: str) -> None:
    for walk in whole(quick(name)).values():
        gathered: dict[str, Counter[str]] = defaultdict(Counter)
        for message in walk.messages:
            if message.operation == "_allgather_base":
                stage = message.during.rstrip("0123456789")[:-1]
                gathered[stage][message.during] += message.size_bytes
        for stage, sizes in gathered.items():
            assert sizes.keys() == {f"{stage}{kind}{m}" for kind in "FI" for m in range(4)}
            assert len(set(sizes.values())) == 1


@_each(("1f1b-bf16", "hsdp-1f1b"))
def test_the_last_stage_keeps_nothing_of_a_micro_batch_but_its_loss(name: str) -> None:
    last = list(whole(quick(name)).values())[-1]
    first, *held = last.held[:-1]  # the last backward sends gradients away
    assert len(held) == 2
    # From the second on, the gradient of the one before is under way.
    (sent,) = {m.size_bytes for m in last.messages if m.operation == "send"}
    assert max(held) - min(held) < 64
    assert abs(held[0] - first - sent) < 64


def _sums_gradients(message: Message) -> bool:
    """Over replicas; tensor parallelism sums by functional collectives, named otherwise."""
    return message.operation in ("allreduce", "_reduce_scatter_base")


EVERY = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name, scope="module")
"""Tests of one case run one after the other: a case is walked once."""


@pytest.mark.slow
@EVERY
def test_every_rank_runs_on_the_device(case: Case) -> None:
    _, walks, _, _ = walked(case)
    found = list(whole(walks).values())
    assert not host_work(found, offloaded=case.optimizer_offload)
    assert case.optimizer_offload or not any(walk.waits for walk in found)
    for walk in found:
        assert not walk.alive
        assert walk.left < FLAGS_BYTES
        # A unit has shards on the device too, before they go to the host.
        shards = (MOST_WHILE_BUILT - 1.0) * walk.unit * case.optimizer_offload
        assert walk.build_peak <= MOST_WHILE_BUILT * walk.built + walk.unit + shards


# What is not priced as it is, measured on 2026-11-30, and why.
_AGAIN = "units called again are priced with the largest buffers of all of them"
HELD = {
    "llama-v-min-pp4-dp2-vpp2-zero0-fp32-attention": "-3.8 % on the third rank: gradients are "
    "priced from a stage's first I on, most come with its first W",
    "t5-1f1b-pp4-dp2-zero3-fp32": "+3.7 % on the first rank: a table of positions is sent as a "
    "copy, since it does not lie in one piece",
    "unet-1f1b-pp4-dp2-zero0-fp32": "+5.1 % of 3.7 MB: a stage copies the gradient of what it only "
    "passes on",
    "recurrent-1f1b-pp2-dp4-zero3-fp32": "+15 % of 40 KB on the last rank: not explained",
    "resnet-dp8-zero0-fp32": "+6.3 %: a bucket of gradients (25 MiB) is under way in the backward, "
    "priced behind it",
    "compared-dp8-zero1-fp32": f"-6.9 % of 60 KB: {_AGAIN}",
    "compared-dp8-zero2-fp32": f"-8.5 % of 50 KB: {_AGAIN}",
    "compared-dp8-zero3-fp32": f"-8.5 % of 50 KB: {_AGAIN}",
    "compared-dp8-zero3-bf16": f"-10.9 % of 30 KB: {_AGAIN}",
}


def _agrees(case: Case, known: dict[str, str], off: dict[object, str]) -> None:
    """Nothing is off; of a known case something is. A walk that fails is no such case."""
    if case.name in known and off:
        pytest.xfail(f"{known[case.name]} ({off})")
    assert not off
    assert case.name not in known, "it is priced as it is by now"


@pytest.mark.slow
@EVERY
def test_every_rank_holds_what_is_priced(case: Case) -> None:
    """The fullest replica of each pipeline rank: where there are fewer rows than replicas (experts)
    the others have no optimizer states of them."""
    plan, walks, peaks, _ = walked(case)
    found = whole(walks)
    off: dict[object, str] = {}
    for pp_rank, priced in enumerate(peaks):
        held = [w.step_peak for r, w in found.items() if plan.degrees.coordinates(r).pp == pp_rank]
        if abs(max(held) / priced - 1) > NEAR:
            off[pp_rank] = f"{max(held) / priced - 1:+.1%}"
    _agrees(case, HELD, off)


@pytest.mark.slow
@EVERY
def test_every_rank_sends_what_is_priced(case: Case) -> None:
    plan, walks, _, priced = walked(case)
    off: dict[object, str] = {}
    for rank, walk in whole(walks).items():
        counted = counted_messages(plan, walk.number, list(walk.messages))
        sent = {" ".join(key): size for key, size in counted.items()}
        if sent != pytest.approx(priced[rank], rel=0.01):
            off[rank] = f"{sent}, priced {priced[rank]}"
    assert not off


def test_there_are_enough_plans() -> None:
    assert len(ALL) >= 60
    assert len({case.name for case in ALL}) == len(ALL)
    assert {case.model for case in ALL} >= {"llama", "gpt2", "mixtral", "bert", "t5", "vit"}
    assert json.dumps(sorted({case.zero for case in ALL})) == "[0, 1, 2, 3]"
