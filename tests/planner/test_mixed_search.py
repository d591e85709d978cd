"""Replicas that differ, from a model's prices: against enumeration by the simulator."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from planner.axes import Axes
from planner.blocks.answer import SearchOptions
from planner.blocks.block_search import one_type_stages, search
from planner.costs.priced_model import PricedModel
from planner.heterogeneous.plan_mixed import UNLIKE, all_as_slowest, only, parts_of, plan_mixed
from planner.heterogeneous.stage_prices import StagePrices, device_types
from planner.heterogeneous.unequal_search import search_unequal, unequal_cells
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.sourced import Sourced
from simulator.traced.predict import predict
from simulator.training_run.framework.framework import load_stack
from simulator.values.degrees import Degrees
from simulator.values.plan import Pipeline, Plan, Recompute, Stage
from simulator.values.workload import Workload
from tests.planner.hand_made_model import TOKENS, HandMadeModel
from tests.planner.test_mixed_devices import partitions, shares
from tests.simulator.hand_made import GIB, device, link

STACK = load_stack()


def two_types(
    fast: int = 2,
    slow: int = 1,
    *,
    speed: float = 0.4,
    slow_gib: float = 80.0,
    wire: float = 50e9,
) -> Cluster:
    """A node of fast devices and one of slow ones that do everything at `speed` of theirs."""
    slower = device(
        name="slow",
        flop_per_s=speed * 100e12,
        bandwidth=speed * 1e12,
        launch_s=1e-6 / speed,
        memory_bytes=slow_gib * GIB,
    )
    size = max(fast, slow)
    return Cluster(
        name="two types",
        groups=(
            NodeGroup(count=1, devices_per_node=fast, device=device(name="fast")),
            NodeGroup(count=1, devices_per_node=slow, device=slower),
        ),
        levels=(
            Level(name="node", domain_size=size, link=link()),
            Level(name="all", domain_size=2 * size, link=link(bandwidth=wire, latency_s=5e-6)),
        ),
    )


def prices_of(model, cluster, batch, space, stages=(1, 2, 3)):
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    priced = PricedModel(
        traced=model,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=TOKENS),
        stack=STACK,
        strategies=space.strategies,
        micro_batches=tuple(sizes),
    )
    return StagePrices(priced, stages)


def searched(prices, space, **limits):
    return search_unequal(prices, unequal_cells(prices, space), clock=lambda: 0.0, **limits)


def enumerated(prices, tp, micro_batch, zero_stage) -> float:
    """The least predicted step over all chains of groups, cuts and shares; recompute as in the
    space's only kind."""
    types = prices.types(tp)
    (kind,) = prices.model.strategies
    items = tuple(k for k, each in enumerate(types) for _ in each.groups)
    graph = prices.model.traced.at(micro_batch, tp)
    n, count = len(graph.chain), prices.model.workload.global_batch // micro_batch
    best = float("inf")
    for chains in set(partitions(items)):
        if not 1 <= len(chains) <= count or (zero_stage and len(chains) == 1):
            continue
        cuts = [
            itertools.combinations(range(1, n), len(chain) - 1)
            for chain in chains
            if len(chain) in prices.stages
        ]
        if len(cuts) < len(chains):
            continue
        for chosen in itertools.product(*cuts):
            for share in shares(count, len(chains)):
                free = [iter(each.groups) for each in types]
                pipelines = []
                for chain, cut, number in zip(chains, chosen, share, strict=True):
                    edges = (0, *cut, n)
                    stages = []
                    for at, k in enumerate(chain):
                        first, last = edges[at], edges[at + 1]
                        stages.append(
                            Stage(
                                device=types[k].device.name,
                                devices=next(free[k]),
                                first_block=first,
                                last_block=last,
                                recompute=(kind,) * (last - first),
                            )
                        )
                    pipelines.append(Pipeline(stages=tuple(stages), num_microbatches=number))
                plan = Plan(
                    model="hand-made",
                    model_hash="",
                    block_entries=tuple(ref.entry for ref in graph.chain),
                    cluster="",
                    cluster_hash="",
                    workload=prices.model.workload,
                    degrees=Degrees(tp=tp, dp=len(chains), pp=max(map(len, chains))),
                    schedule="1f1b",
                    stages=(),
                    zero_stage=zero_stage,
                    micro_batch=micro_batch,
                    pipelines=tuple(pipelines),
                )
                found = predict(plan, prices.model.traced, prices.model.cluster, stack=STACK)
                if found.fits:
                    best = min(best, found.step_time_s.value)
    return best


@pytest.mark.parametrize(
    ("cluster", "zero_stage", "width", "sizes"),
    [
        (two_types(2, 1), 0, 2048, (1,)),
        (two_types(2, 1, speed=0.7), 2, 2048, (1,)),
        (two_types(1, 2, speed=0.55, wire=5e9), 0, 2048, (1,)),
        (two_types(2, 1, slow_gib=0.9), 0, 2048, (1,)),
        # The best: three samples, on two of the devices.
        (two_types(2, 1), 0, 128, (1, 2, 3)),
    ],
    ids=["unlike", "sharded", "thin wire", "tight", "sizes"],
)
def test_equals_enumeration(cluster, zero_stage, width, sizes):
    space = Axes(recompute=(Recompute.NONE,), zero=(zero_stage,), micro_batch=sizes, tp=(1,))
    prices = prices_of(HandMadeModel(2, width=width), cluster, 6, space)
    expected = min(enumerated(prices, 1, size, zero_stage) for size in sizes)
    found = searched(prices, space)
    assert found.bound <= expected * (1 + 1e-9)
    best_s = found.prediction.step_time_s.value
    assert best_s == pytest.approx(expected, rel=1e-9)
    assert searched(prices, space, below_s=best_s).plan is None


def test_keys_by_hand():
    """Of a batch of four on 2 + 2 devices. ZeRO 0, 1 and 2; with one replica only 0."""
    prices = prices_of(HandMadeModel(2), two_types(2, 2), 4, Axes())
    counted = Counter(
        (cell.degrees.tp, cell.micro_batch, cell.degrees.dp)
        for cell in unequal_cells(prices, Axes())
    )
    # One to four groups of one device, one or two of two; a replica has a micro-batch or more.
    assert counted == {
        (1, 1, 1): 1, (1, 1, 2): 3, (1, 1, 3): 3, (1, 1, 4): 3, (1, 2, 1): 1, (1, 2, 2): 3,
        (1, 4, 1): 1, (2, 1, 1): 1, (2, 1, 2): 3, (2, 2, 1): 1, (2, 2, 2): 3, (2, 4, 1): 1,
    }  # fmt: skip


def planned(model, cluster, batch, space, options=None, **more):
    return plan_mixed(
        model,
        cluster,
        Workload(global_batch=batch, sequence_length=TOKENS),
        space=space,
        stack=STACK,
        usd_per_hour=more,
        options=options or SearchOptions(clock=lambda: 0.0),
    )


def test_dollars_are_of_the_devices_that_run():
    fast, slow = (Sourced(value=usd, source="here", date="2026-11-22") for usd in (4.0, 1.0))
    space = Axes(pp=(1,), zero=(2,))
    answer = planned(HandMadeModel(6, width=2048), two_types(2, 2), 56, space, fast=fast, slow=slow)
    usd_per_hour = {"fast alone": 8, "slow alone": 2, "all with equal shares": 10, UNLIKE: 10}
    found = {each.title: each for each in answer.comparison.compared}
    assert found.keys() == usd_per_hour.keys()
    for title, each in found.items():
        usd = each.step_time_s / 3600 * usd_per_hour[title] / (56 * TOKENS) * 1e6
        assert each.usd_per_million_tokens == pytest.approx(usd)
    assert answer.usd_per_million_tokens == found[UNLIKE].usd_per_million_tokens


@pytest.mark.parametrize(("limit_s", "unsearched"), [(200.0, 0), (10.0, 2)])
def test_every_search_has_a_share_of_the_time(limit_s, unsearched):
    ticks = itertools.count()
    options = SearchOptions(clock=lambda: float(next(ticks)), time_limit_s=limit_s)
    answer = planned(HandMadeModel(6), two_types(2, 2), 64, Axes(), options=options)
    # None of the time is left; each search looks at the clock a few times more.
    assert limit_s < next(ticks) < limit_s + 4 * 5
    plans = {each.title: each.plan for each in answer.comparison.compared}
    late = [title for title, plan in plans.items() if plan.startswith("not searched")]
    assert late == ["all, each stage of one type", "all with equal shares"][2 - unsearched :]
    assert "micro-batch" in plans["fast alone"]


def test_a_useless_device_is_left_out():
    # A twentieth of the speed behind a thin wire: what it would do takes longer than the step.
    answer = planned(HandMadeModel(4), two_types(2, 1, speed=0.05, wire=1e9), 8, Axes())
    assert {left.device: left.num_devices for left in answer.comparison.left_out} == {"slow": 1}
    assert "20 times as long" in answer.comparison.left_out[0].why
    assert answer.bound <= answer.step_time_s
    other = planned(HandMadeModel(4), two_types(2, 2), 8, Axes(schedule=("gpipe",))).comparison
    assert {e.plan for e in other.compared if e.title == UNLIKE} == {"the pins allow none"}


def test_unlike_replicas_beat_equal_ones():
    space = Axes(pp=(1,), zero=(2,))
    answer = planned(HandMadeModel(6, width=2048), two_types(2, 2), 56, space)
    assert answer.comparison.chosen == UNLIKE
    shares = {p.stages[0].device: p.num_microbatches for p in answer.plan.pipelines}
    assert shares["fast"] / shares["slow"] == pytest.approx(1 / 0.4, rel=0.15)
    steps = {each.title: each.step_time_s for each in answer.comparison.compared}
    assert answer.prediction.step_time_s.value == answer.step_time_s
    assert answer.step_time_s == steps[UNLIKE] == min(s for s in steps.values() if s)
    assert not answer.comparison.left_out
    again = planned(HandMadeModel(6, width=2048), two_types(2, 2), 56, space)
    assert again == answer


def test_unlike_replicas_name_model_and_cluster_as_other_plans_do():
    model, cluster = HandMadeModel(4, tied=True), two_types(2, 2)
    space = Axes(micro_batch=(1,), tp=(2,), zero=(0,))
    prices = prices_of(model, cluster, 8, space)
    found = searched(prices, space).plan
    other = search(
        model,
        cluster,
        prices.model.workload,
        space=space,
        stack=STACK,
        options=SearchOptions(clock=lambda: 0.0, solver="dp"),
    ).plan
    assert other.tied_parameters
    assert other.tensor_parallel
    differing = (
        "stages",
        "pipelines",
        "unused",
        "degrees",
        "micro_batch",
        "zero_stage",
        "schedule",
    )
    assert replace(found, **{name: getattr(other, name) for name in differing}) == other


def test_a_tight_device_holds_what_fits_it():
    model, space = HandMadeModel(8, width=2048), Axes(micro_batch=(1,), tp=(1,), zero=(0,))
    cluster = two_types(2, 2, speed=0.9, slow_gib=1.7)
    found = searched(prices_of(model, cluster, 16, space, stages=(2, 3, 4)), space)
    assert all(rank.peak_bytes <= rank.capacity_bytes for rank in found.prediction.ranks)
    roomy = searched(
        prices_of(model, two_types(2, 2, speed=0.9), 16, space, stages=(2, 3, 4)), space
    )
    assert roomy.prediction.step_time_s.value < found.prediction.step_time_s.value


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_stages_that_fit_are_predicted_to_fit(zero_stage):
    # Every stage's bytes in the tables are those of the prediction, once all are in flight.
    cluster, model = two_types(2, 2), HandMadeModel(5, width=2048)
    space = Axes(micro_batch=(2,), zero=(zero_stage,), dp=(2,), pp=(2,))
    for gib in (1.0, 1.5, 2.0, 3.0):
        tight = two_types(2, 2, slow_gib=gib)
        found = searched(prices_of(model, tight, 24, space, stages=(2,)), space)
        if found.plan is not None:
            assert found.prediction.fits
    prices = prices_of(model, cluster, 24, space)
    cell = prices.cell(Degrees(dp=2), 2, zero_stage)
    least, far = prices.tables(cell, least=True), prices.tables(cell)
    for a, b in zip(least.seconds, far.seconds, strict=True):
        assert all((x <= y).all() for x, y in zip(a, b, strict=True))


def test_groups_keep_to_a_node_and_a_type():
    kinds = device_types(two_types(3, 2), 2)
    assert [(kind.device.name, kind.groups) for kind in kinds] == [
        ("fast", ((0, 1),)),
        ("slow", ((3, 4),)),
    ]
    assert device_types(two_types(3, 2), 4) == ()


def test_parts_of_a_cluster():
    cluster = two_types(4, 4)
    assert only(cluster, "slow").num_devices == 4
    assert [level.name for level in only(cluster, "slow").levels] == ["node"]
    # pp 1 would have ranks on both types.
    assert one_type_stages(cluster, Axes()).pp == (2, 4, 8)
    assert one_type_stages(cluster, Axes(pp=(1,))) is None
    assert one_type_stages(two_types(2, 1), Axes()).pp == (3,)
    slow = all_as_slowest(two_types(2, 1, slow_gib=8.0), "fast")
    assert {group.device.usable_bytes for group in slow.groups} == {8.0 * GIB}
    assert slow.homogeneous


@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4)])
def test_a_type_keeps_the_levels_that_its_nodes_span(nodes, levels):
    """Nodes of 3; racks of 6, rows of 12 and a hall of 48 devices."""
    names = ("node", "rack", "row", "hall")
    groups = tuple(
        NodeGroup(count=count, devices_per_node=3, device=device(name=name))
        for count, name in ((1, "fast"), (6, "slow"), (nodes - 1, "fast"))
        if count
    )
    cluster = Cluster(
        name="hall",
        groups=groups,
        levels=tuple(
            Level(name=name, domain_size=size, link=link())
            for name, size in zip(names, (3, 6, 12, 48), strict=True)
        ),
    )
    found = only(cluster, "fast")
    assert found.num_devices == 3 * nodes
    assert [level.name for level in found.levels] == list(names[:levels])
    parts = parts_of(cluster, Axes(), "slow")
    assert [len(part.devices) for part in parts if len(set(part.devices)) == 1] == [3 * nodes, 18]
    assert {part.devices.count("fast") for part in parts[2:]} == {3 * nodes}


def test_the_ordinary_search_keeps_stages_to_a_type():
    model, work = HandMadeModel(6), Workload(global_batch=8, sequence_length=TOKENS)
    answer = search(model, two_types(2, 2), work, space=Axes(), stack=STACK)
    assert answer.plan.degrees.pp in (2, 4)
    with pytest.raises(InputError, match=r"--pp 1 the stages .* mix its device types"):
        search(model, two_types(2, 2), work, space=Axes(pp=(1,)), stack=STACK)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Axes(tp=(16,)), r"obeys --tp 16. fast alone; .*: --tp 16: tp is one of 1, 2, 4, 8"),
        (Axes(zero=(3,), pp=(3,)), r"--pp 3: tp x cp x pp x dp must use the 2 devices"),
    ],
)
def test_pins_that_contradict_are_named(space, message):
    with pytest.raises(InputError, match=message):
        planned(HandMadeModel(4), two_types(2, 2), 8, space)


def test_a_device_without_a_rate_is_named():
    cluster = two_types(2, 2)
    old = device(name="old", rates=("float32",))
    cluster = Cluster(
        name="with old ones",
        groups=(cluster.groups[0], NodeGroup(count=1, devices_per_node=2, device=old)),
        levels=cluster.levels,
    )
    with pytest.raises(InputError, match=r"device old of cluster with old ones has no rate for bf"):
        planned(HandMadeModel(4), cluster, 8, Axes())
