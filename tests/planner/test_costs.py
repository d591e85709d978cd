"""The planner's prices against the simulator's predictions of the same plans."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.axes import Axes
from planner.blocks.answer import SearchOptions, block_rules, legal_cells
from planner.blocks.block_search import search
from planner.chain.partition import partition
from planner.chain.problem import Partition, step_time
from planner.costs.bound import lower_bound
from planner.costs.costs import SimulatorCosts
from planner.costs.priced_model import PricedModel
from planner.mesh.cell_solver import CellSolver
from planner.mesh.timeline_search import TimelineSearch
from planner.space import LayoutContext
from profiles.document import encode, to_json
from profiles.errors import ShardwrightError, TraceError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import ActionOverhead, Measurements, StepOverhead
from profiles.hardware.catalogue.link import Link
from profiles.sourced import Sourced
from simulator.memory.held import held_by_stages
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Recompute
from simulator.values.workload import Workload
from tests.oracles.stage_memory import stage_memory_bytes
from tests.planner.hand_made_model import TOKENS, HandMadeModel

STACK = load_stack()
ALL = Axes()


def costs_of(model, cluster, batch, strategies=ALL.strategies):
    priced = PricedModel(
        traced=model,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=TOKENS),
        stack=STACK,
        strategies=strategies,
        micro_batches=(1, 2, 4),
    )
    return SimulatorCosts(priced)


def cells_of(model, cluster, batch, space=ALL):
    context = LayoutContext(
        rules=block_rules(),
        blocks=True,
        may_idle=False,
        num_devices=cluster.num_devices,
        node_devices=cluster.levels[0].domain_size,
        num_layers=model.layers + 2,
        tp_degrees=model.tp_degrees,
        global_batch=batch,
    )
    cells = legal_cells(space, context)
    return [cell for cell in cells if cell.micro_batch <= 4]


def as_cpus(cluster, slowest=1.08):
    """The cluster with devices that are priced as CPUs: no prefetch, an optimizer per tensor, the
    slowest 8 % slower than their mean, 2 and 3 ms around the actions of a pipeline; in steps
    without one, more the longer they are."""
    around = ActionOverhead(
        forward_cpu_s=1.5e-3,
        forward_outside_s=0.5e-3,
        backward_cpu_s=1e-3,
        backward_outside_s=2e-3,
    )
    whole = StepOverhead(
        forward_s=1e-3,
        backward_s=0.5e-3,
        step_s=2e-3,
        slowest=1.06,
        outside=0.01,
        work_s=0.1,
        meeting_s=1e-3,
    )
    measured = Measurements(
        source="by hand", date="2026-11-23", slowest=slowest, action=around, step=whole
    )
    cpu = {"type": "cpu", "name": "as-cpu", "measurements": measured}
    groups = tuple(replace(group, device=replace(group.device, **cpu)) for group in cluster.groups)
    return replace(cluster, name="cpus", groups=groups)


CLUSTERS = {
    "one node": get_cluster("8xh100-sxm"),
    "two nodes": get_cluster("2x4xa100"),
    "pcie": get_cluster("4x2xl40s"),
    "cpus": as_cpus(get_cluster("2xh100-sxm")),
}
MODELS = {
    "plain": HandMadeModel(9),
    "tied": HandMadeModel(6, tied=True),
    "frozen": HandMadeModel(7, frozen=True),
    "freed": HandMadeModel(8, freed=True),
}
PRICED = {
    (model, cluster): costs_of(MODELS[model], CLUSTERS[cluster], 16)
    for model in MODELS
    for cluster in CLUSTERS
}


@st.composite
def random_plans(draw):
    """A cell and any partition of it; for interleaved one with stages as even as can be."""
    model, cluster = draw(st.sampled_from(sorted(PRICED)))
    costs = PRICED[model, cluster]
    hybrid = draw(st.sampled_from((None, (1, 2, 4))))
    space = Axes(dp_replicate=hybrid)
    cell = draw(st.sampled_from(cells_of(MODELS[model], CLUSTERS[cluster], 16, space)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = MODELS[model].layers + 2
    if cell.degrees.vpp > 1:
        more = np.zeros(cell.degrees.num_stages, dtype=int)
        more[rng.permutation(cell.degrees.num_stages)[: n % cell.degrees.num_stages]] = 1
        sizes = n // cell.degrees.num_stages + more
        starts = tuple(int(x) for x in np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    else:
        cuts = rng.choice(np.arange(1, n), size=cell.degrees.pp - 1, replace=False)
        starts = (0, *(int(x) for x in sorted(cuts)))
    chosen = tuple(int(x) for x in rng.integers(0, len(costs.model.strategies), n))
    return costs, cell, Partition(starts=starts, strategies=chosen, step_time_s=0.0)


def test_a_pipeline_s_ranks_are_all_as_slow_as_the_slowest():
    slow, even = (
        costs_of(MODELS["plain"], as_cpus(get_cluster("2xh100-sxm"), slowest), 16).times
        for slowest in (1.08, 1.0)
    )
    cells = cells_of(MODELS["plain"], CLUSTERS["cpus"], 16, Axes(pp=(2,), micro_batch=(1,)))
    for cell, rank in itertools.product(cells[:3], range(2)):
        assert slow.seconds(cell, rank) == pytest.approx(1.08 * even.seconds(cell, rank))
        pairs = zip(slow.overhead_s(cell, rank), even.overhead_s(cell, rank), strict=True)
        assert all(one == pytest.approx(1.08 * other) for one, other in pairs)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(random_plans())
def test_no_prediction_beats_the_bound_or_the_objective(case):
    costs, cell, found = case
    prediction = costs.predict(costs.plan(cell, found))
    step = prediction.step_time_s.value * (1 + 1e-9)
    bound = lower_bound(cell, costs.totals(cell))
    most = max(rank.peak_bytes - rank.capacity_bytes for rank in prediction.ranks)
    assert costs.missing_bytes(cell) <= most + 1
    if prediction.fits:
        assert bound <= step
        assert costs.missing_bytes(cell) <= 0
    if cell.degrees.vpp == 1:
        objective = step_time(costs.problem(cell), found.starts, found.strategies)
        assert objective <= step
        if cell.schedule == "none":
            assert objective == pytest.approx(step, rel=1e-6)


def test_the_bound_on_memory_is_near_that_of_some_plan():
    """Of plans with stages of equal numbers of blocks and one strategy."""
    ratios = []
    for (name, on), costs in sorted(PRICED.items()):
        n = MODELS[name].layers + 2
        for cell in cells_of(MODELS[name], CLUSTERS[on], 16)[::7]:
            if cell.degrees.vpp == 1 and on != "cpus":
                starts = tuple(n * s // cell.degrees.pp for s in range(cell.degrees.pp))
                plans = (
                    Partition(starts=starts, strategies=(k,) * n, step_time_s=0.0)
                    for k in range(len(costs.model.strategies))
                )
                ranks = (costs.predict(costs.plan(cell, found)).ranks for found in plans)
                least = min(max(rank.peak_bytes for rank in each) for each in ranks)
                bound = costs.missing_bytes(cell) + costs.memory.capacity_bytes
                ratios.append(bound / least)
    assert max(ratios) <= 1
    assert np.median(ratios) > 0.8


def test_an_interleaved_plan_is_found_and_predicted_as_it_was_chosen():
    for priced, costs in sorted(PRICED.items()):
        model, cluster = MODELS[priced[0]], CLUSTERS[priced[1]]
        solver = CellSolver(costs, solver="auto", seed=0)
        for cell in cells_of(model, cluster, 16, Axes(schedule=("interleaved",)))[::5]:
            found = TimelineSearch(solver.by_timeline(cell)).best()
            assert found is not None
            prediction = costs.predict(costs.plan(cell, found))
            assert prediction.fits
            assert found.step_time_s <= prediction.step_time_s.value * (1 + 1e-9)
            if cell.zero_stage < 3:
                assert found.step_time_s == pytest.approx(prediction.step_time_s.value, rel=1e-9)


@pytest.mark.parametrize("schedule", ["zb-h1", "1f1b"])
def test_more_memory_changes_what_is_searched(schedule):
    solver = CellSolver(PRICED["plain", "pcie"], solver="auto", seed=0)
    space = Axes(schedule=(schedule,), pp=(2,), zero=(0,))
    (cell, *_) = cells_of(MODELS["plain"], CLUSTERS["pcie"], 16, space)
    found = solver.with_more(cell)
    best = solver.refine(cell, np.inf, 0.0)
    assert found(0.0).step_time_s == pytest.approx(best.step_time_s, rel=0.01)
    assert found(-1e12) is None


@pytest.mark.parametrize("cluster", ["two nodes", "cpus"])
def test_prices_do_not_depend_on_the_meshes_priced_before(cluster):
    """Values that cells share are cached: each cell is priced again by costs without a cache."""

    def priced(costs, cell):
        found = costs.totals(cell), costs.rank_needs(cell), costs.problem(cell)
        return costs.missing_bytes(cell), *map(asdict, found)

    model, space = MODELS["tied"], Axes(dp_replicate=(1, 2))
    shared = costs_of(model, CLUSTERS[cluster], 16)
    for cell in cells_of(model, CLUSTERS[cluster], 16, space)[::13]:
        new = costs_of(model, CLUSTERS[cluster], 16)
        np.testing.assert_equal(priced(shared, cell), priced(new, cell))


@settings(max_examples=250, deadline=None, derandomize=True)
@given(random_plans())
def test_stage_memory_is_the_predicted_peak(case):
    costs, cell, found = case
    if cell.degrees.vpp > 1:
        return
    problem = costs.problem(cell)
    ranks = costs.predict(costs.plan(cell, found)).ranks
    for stage, (i, j) in enumerate(zip(found.starts, found.ends(), strict=True)):
        mine = stage_memory_bytes(problem, stage, i, found.strategies[i:j])
        predicted = ranks[stage].peak_bytes
        # Bytes are rounded up per block; where all micro-batches are in flight at once, the first
        # block of a stage is taken at the strategy that needs least, and backwards alone run from
        # the second on, but each block is taken with what its forward or its backward needs.
        rounded = 100 * (j - i) * cell.num_microbatches
        chain = costs.times.chain(cell, 0)
        more = chain.forward_transient_bytes - chain.backward_transient_bytes
        forward = more[chain.at[i:j], found.strategies[i:j]].max()
        at_once = cell.num_microbatches <= problem.slots[stage].in_flight
        assert mine <= predicted + rounded + max(0.0, forward) * at_once
        if cell.num_microbatches > problem.slots[stage].in_flight:
            assert mine >= predicted - 1


@pytest.mark.parametrize("name", ["tied", "frozen"])
def test_parameters_of_several_ranges_are_those_that_the_simulator_counts(name):
    memory, graph = PRICED[name, "pcie"].memory, MODELS[name].at(1, 1)
    n = len(graph.chain)
    for ranges in (((0, 1), (n - 1, n)), ((0, 2), (4, 6)), ((1, 3), (n - 2, n)), ((0, n),)):
        held = held_by_stages(graph, [graph.chain[i:j] for i, j in ranges])
        trained = memory.trained(1).of(ranges)
        assert trained == sum(held.trained)
        assert memory.parameters(1).of(ranges) == trained + held.frozen


def test_an_even_1f1b_plan_is_predicted_as_the_objective_says():
    model, cluster = MODELS["plain"], CLUSTERS["two nodes"]
    costs = PRICED["plain", "two nodes"]
    space = Axes(schedule=("1f1b",), recompute=None)
    for cell in cells_of(model, cluster, 16, space):
        problem = costs.problem(cell)
        n, p = problem.num_blocks, cell.degrees.pp
        starts = tuple(n * s // p for s in range(p))
        found = Partition(starts=starts, strategies=(0,) * n, step_time_s=0.0)
        predicted = costs.predict(costs.plan(cell, found)).step_time_s.value
        objective = step_time(problem, starts, found.strategies)
        assert objective == pytest.approx(predicted, rel=0.15)
        assert objective <= predicted * (1 + 1e-9)


def run_search(model, cluster, batch, space=ALL, **options):
    return search(
        model,
        cluster,
        Workload(global_batch=batch, sequence_length=TOKENS),
        space=space,
        stack=STACK,
        options=SearchOptions(clock=lambda: 0.0, **options),
    )


def test_the_search_finds_what_trying_everything_finds():
    model, cluster = MODELS["plain"], CLUSTERS["two nodes"]
    space = Axes(schedule=("none", "1f1b", "gpipe"), micro_batch=(1, 2))
    answer = run_search(model, cluster, 16, space)
    costs = costs_of(model, cluster, 16)
    every = []
    for cell in cells_of(model, cluster, 16, space):
        found = partition(costs.problem(cell))
        if found is not None:
            prediction = costs.predict(costs.plan(cell, found))
            if prediction.fits:
                every.append(prediction.step_time_s.value)
    assert answer.step_time_s == pytest.approx(min(every), rel=1e-12)
    assert answer.bound <= answer.step_time_s
    assert answer.prediction.fits


def test_equal_searches_give_equal_bytes():
    model, cluster = MODELS["tied"], CLUSTERS["pcie"]
    first = to_json(encode(run_search(model, cluster, 16)))
    again = to_json(encode(run_search(HandMadeModel(6, tied=True), cluster, 16)))
    assert first == again


def test_both_solvers_agree_on_a_real_setting():
    model, cluster = MODELS["plain"], CLUSTERS["one node"]
    space = Axes(pp=(2,), tp=(1, 2), schedule=("1f1b",), micro_batch=(1,))
    by_dp = run_search(model, cluster, 16, space, solver="dp")
    by_ilp = run_search(model, cluster, 16, space, solver="ilp")
    assert by_dp.step_time_s == pytest.approx(by_ilp.step_time_s, rel=1e-6)
    assert by_ilp.solver == "ilp"
    (cell, *_) = cells_of(model, cluster, 16, space)  # what was proved before stays proved
    for solver in ("dp", "ilp"):
        solved = CellSolver(costs_of(model, cluster, 16), solver=solver, seed=0)
        step = solved.refine(cell, np.inf, 0.0).step_time_s
        assert solved.refine(cell, np.inf, step).bound_s == pytest.approx(step)


class Changed(HandMadeModel):
    """One whose graphs have other fields, and which may not run on a single sample."""

    def __init__(self, layers, *, least=1, **fields):
        super().__init__(layers)
        self.least, self.fields = least, fields

    def _graph(self, batch, tp):
        if batch < self.least:
            raise TraceError("batch normalization of one value")
        return replace(super()._graph(batch, tp), **self.fields)


def test_models_that_are_not_run_in_every_way():
    on = get_cluster("4xh100-sxm")
    several, state = Changed(3, least=2), Changed(3, state=("mean",))
    assert run_search(several, on, 16, Axes(micro_batch=(1, 2), dp=(4,))).plan.micro_batch == 2
    assert run_search(state, on, 16, Axes(zero=(0,))).plan.degrees.dp == 1
    many = get_cluster("8x8xh100-sxm")
    for model, space, cluster, words in (
        (several, Axes(micro_batch=(1,)), on, "batch normalization"),
        (state, Axes(dp=(2, 4)), on, "--dp 2,4: the model changes mean"),
        (state, Axes(dp=(1, 2), tp=(3,)), on, "dp must be 1: .* --tp 3"),
        (state, Axes(), many, r"at most 40 devices can be used .* but --on names 64"),
        (Changed(3, clamped=("w",)), Axes(zero=(3,)), on, "--zero 3: .*; use --zero 0,1,2"),
    ):
        with pytest.raises(ShardwrightError, match=words):
            run_search(model, cluster, 16, space)


def test_nothing_fits_says_why_and_what_would():
    # 64 layers of 8 x 8192^2 parameters: 34 G x 18 bytes do not fit on four devices.
    large = HandMadeModel(64, width=8192)
    answer = run_search(large, get_cluster("4xh100-sxm"), 64)
    assert answer.status == "infeasible"
    why = answer.infeasibility
    assert why.term in ("optimizer states", "parameters")
    assert why.bytes_over > 0
    changes = {change.flag for change in why.relaxations}
    assert any(flag.startswith("--on ") for flag in changes)


def test_states_that_exceed_all_memory_are_missing_whole():
    """18 bytes for each of 34 G parameters, in equal shares of the ranks, and some activations."""
    large, on = HandMadeModel(64, width=8192), get_cluster("4xh100-sxm")
    costs = costs_of(large, on, 64)
    graph = large.at(1, 1)
    kinds = [graph.kinds[ref.kind] for ref in graph.chain]
    states = 18 * sum(p.spec.num_elements for kind in kinds for p in kind.parameters)
    space = Axes(tp=(1,), zero=(0,), micro_batch=(1,), schedule=("none", "1f1b"))
    cells = cells_of(large, on, 64, space)
    assert {cell.degrees.pp for cell in cells} == {1, 2, 4}
    for cell in cells:
        needed = costs.missing_bytes(cell) + costs.capacity_bytes
        assert 1 <= needed / (states / cell.degrees.pp) < 1.01


def test_a_pinned_recompute_that_does_not_fit_is_relaxed():
    # 36 layers on tp 4: 22 GB of states; a micro-batch of 16 keeps 0.8 GB a layer, or 0.3.
    large = HandMadeModel(36, width=4096)
    space = Axes(recompute=(Recompute.NONE,), micro_batch=(16,), pp=(1,), tp=(4,))
    answer = run_search(large, get_cluster("4xl40s"), 64, space)
    assert answer.status == "infeasible"
    assert answer.infeasibility.term == "activations"
    flags = [change.flag for change in answer.infeasibility.relaxations]
    assert "--recompute none,attention,full" in flags
    assert any(flag.startswith("--micro-batch ") for flag in flags)


@pytest.mark.parametrize(("layers", "slow_bytes"), [(9, None), (24, 1.1e9)])
def test_mixed_devices_are_priced_where_they_stand(layers, slow_bytes):
    """1.1 GB on the slow devices is less than the 1.5 GB that a rank has in mean."""
    fast, slow = get_cluster("2xh100-sxm"), get_cluster("2xa100")
    number = Sourced(value=1e11, source="made up here", date="2026-11-21", method="assumed")
    link = Link(
        name="wire",
        bandwidth_bytes_per_s=number,
        latency_s=replace(number, value=1e-6),
        efficiency=replace(number, value=0.8),
    )
    groups = (*fast.groups, *slow.groups)
    if slow_bytes:
        reserved = slow.groups[0].device.reserved_bytes
        memory = replace(number, value=slow_bytes + reserved.value)
        tight = replace(slow.groups[0], device=replace(slow.groups[0].device, memory_bytes=memory))
        groups = (*fast.groups, tight)
    mixed = Cluster(
        name="mixed",
        groups=tuple(NodeGroup(count=1, devices_per_node=2, device=g.device) for g in groups),
        levels=(
            Level(name="node", domain_size=2, link=link),
            Level(name="all", domain_size=4, link=link),
        ),
    )
    space = Axes(
        pp=(2,), tp=(2,), schedule=("1f1b",), micro_batch=(1,), recompute=(Recompute.NONE,)
    )
    model, n = HandMadeModel(layers), layers + 2
    answer = run_search(model, mixed, 16, space)
    first, second = answer.plan.stages
    assert first.num_blocks > second.num_blocks  # the faster devices take more of the layers
    assert answer.bound <= answer.step_time_s
    costs = costs_of(model, mixed, 16, space.strategies)
    (cell,) = cells_of(model, mixed, 16, space)
    every = [
        costs.predict(
            costs.plan(cell, Partition(starts=(0, cut), strategies=(0,) * n, step_time_s=0.0))
        )
        for cut in range(1, n)
    ]
    least = min(each.step_time_s.value for each in every if each.fits)
    assert answer.step_time_s == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("name", ["plain", "tied", "frozen"])
def test_a_cpu_updates_parameters_one_after_the_other(name):
    """Without replicas, a stage's tail is the sum over its blocks; a tied table counts once."""
    costs = PRICED[name, "cpus"]
    cells = cells_of(MODELS[name], CLUSTERS["cpus"], 16, Axes(dp=(1,), schedule=("none", "1f1b")))
    assert {cell.degrees.pp for cell in cells} == {1, 2}
    for cell in cells:
        problem = costs.problem(cell)
        for slot, blocks in zip(problem.slots, costs.rank_needs(cell).tails_s, strict=True):
            tails = problem.tails_s[slot.tail]
            assert blocks.sum() == pytest.approx(tails[0, -1])
            if name != "tied":
                assert tails[0, 1:] == pytest.approx(np.cumsum(blocks))


def test_a_large_search_ends_with_a_plan_and_others():
    space = Axes(tp=(8,), micro_batch=(1,))
    answer = run_search(HandMadeModel(80, width=8192), get_cluster("16x8xh100-sxm"), 1024, space)
    assert answer.prediction.fits
    assert len(answer.alternatives) >= 1


def test_a_plan_that_needs_more_than_its_problem_says_is_made_again_under_less(monkeypatch):
    """Two ranks of 100 bytes: the first of a plan of a problem with c bytes needs c + 30, the
    second c - 60, and the plan is predicted to take 1000 - c seconds."""
    model, on = HandMadeModel(2), get_cluster("1x4xh100-sxm")
    solver = CellSolver(costs_of(model, on, 8), solver="auto", seed=0)
    cell = cells_of(model, on, 8)[0]

    def predicted(capacity):
        ranks = tuple(
            SimpleNamespace(peak_bytes=capacity + more, capacity_bytes=100.0)
            for more in (30.0, -60.0)
        )
        step = SimpleNamespace(value=1000.0 - capacity)
        return SimpleNamespace(fits=capacity + 30.0 <= 100.0, ranks=ranks, step_time_s=step)

    class Room:
        def __init__(self, capacity):
            self.capacity = capacity

        def with_capacity(self, more):
            return Room(self.capacity + more)

    monkeypatch.setattr(solver.costs, "plan", lambda cell, found: found)
    monkeypatch.setattr(solver.costs, "predict", predicted)
    found = solver._made(cell, Room(100.0), lambda problem, first: (problem.capacity, 900.0))
    assert found.plan == 70.0
    # What is proved is of the first problem.
    assert found.bound_s == 900.0
