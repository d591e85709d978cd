"""Replicas that differ, from a model's prices: against enumeration by the simulator."""

import itertools

import pytest

from planner.mixed_prices import MixedPrices
from planner.mixed_search import mixed_keys, search_mixed
from planner.space import Space
from profiles.hardware.cluster import Cluster, Level, NodeGroup
from simulator.mixed_plan import MixedPipeline, MixedPlan, MixedStage
from simulator.mixed_prediction import predict_mixed
from simulator.plan import Recompute
from simulator.stack import load_stack
from simulator.workload import Workload
from tests.planner.test_costs import TOKENS, HandMadeModel
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
    return MixedPrices(
        model,
        cluster,
        Workload(global_batch=batch, sequence_length=TOKENS),
        stack=STACK,
        strategies=space.strategies,
        micro_batches=sizes,
        stages=stages,
    )


def searched(prices, space):
    return search_mixed(prices, mixed_keys(prices, space), usd_per_hour={}, clock=lambda: 0.0)


def enumerated(prices, tp, micro_batch, zero_stage) -> float:
    """The least predicted step over all chains of groups, cuts and shares; recompute as in the
    space's only kind."""
    types = prices.types(tp)
    (kind,) = prices.strategies
    items = tuple(k for k, each in enumerate(types) for _ in each.groups)
    graph = prices.traced.at(micro_batch, tp)
    n, count = len(graph.chain), prices.workload.global_batch // micro_batch
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
                            MixedStage(
                                device=types[k].device.name,
                                devices=next(free[k]),
                                first_block=first,
                                last_block=last,
                                recompute=(kind,) * (last - first),
                            )
                        )
                    pipelines.append(MixedPipeline(stages=tuple(stages), num_microbatches=number))
                plan = MixedPlan(
                    model="hand-made",
                    model_hash="",
                    block_entries=tuple(ref.entry for ref in graph.chain),
                    cluster="",
                    cluster_hash="",
                    workload=prices.workload,
                    tp=tp,
                    zero_stage=zero_stage,
                    micro_batch=micro_batch,
                    pipelines=tuple(pipelines),
                )
                found = predict_mixed(plan, prices.traced, prices.cluster, stack=STACK, prices={})
                if found.fits:
                    best = min(best, found.step_time_s.value)
    return best


@pytest.mark.parametrize(
    ("cluster", "zero_stage"),
    [
        (two_types(2, 1), 0),
        (two_types(2, 1, speed=0.7), 2),
        (two_types(1, 2, speed=0.55, wire=5e9), 0),
        (two_types(2, 1, slow_gib=0.9), 0),
    ],
    ids=["unlike", "sharded", "thin wire", "tight"],
)
def test_equals_enumeration(cluster, zero_stage):
    space = Space(recompute=(Recompute.NONE,), zero=(zero_stage,), micro_batch=(1,), tp=(1,))
    prices = prices_of(HandMadeModel(2, width=2048), cluster, 6, space)
    expected = enumerated(prices, 1, 1, zero_stage)
    found = searched(prices, space)
    print(found.bound_s, expected, found.prediction.step_time_s.value, found.plan.pipelines)
    assert found.bound_s <= expected * (1 + 1e-9)
    assert found.prediction.step_time_s.value == pytest.approx(expected, rel=1e-9)
