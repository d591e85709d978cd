"""Blocks that branch: ideals, orders, and the programme over ideals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from planner.axes import Axes
from planner.blocks.answer import block_rules, legal_cells
from planner.blocks.block_search import search
from planner.chain.ideals import lattice_of, lattice_of_flows, widest_lattice
from planner.chain.partition import partition
from planner.chain.problem import (
    BlockCosts,
    Partition,
    PartitionProblem,
    StageSlot,
    step_time,
)
from planner.chain.relaxed_bound import RankNeeds, relaxed_bound
from planner.costs.costs import SimulatorCosts
from planner.costs.priced_model import PricedModel
from planner.mesh import branch_solver
from planner.mesh.branch_solver import BranchSolver, Ordered, cell_solver, in_traced_stages
from planner.space import LayoutContext
from profiles.errors import InputError
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Recompute
from simulator.values.workload import Workload
from tests.oracles.random_branches import SHAPES, BranchModel
from tests.oracles.stage_memory import stage_memory_bytes
from tests.simulator.hand_made import cluster, device, link

TOWERS = [(0, 1), (1, 4), (2, 3), (3, 4)]  # two towers of two blocks, and what joins them


def costs_of(model, *, pp=2, memory_bytes=2.0**40, micro=4):
    priced = PricedModel(
        traced=model,
        cluster=cluster(1, pp, of=device(memory_bytes=memory_bytes), inner=link(bandwidth=5e9)),
        workload=Workload(global_batch=micro, sequence_length=1, precision="bf16"),
        stack=load_stack(),
        strategies=(Recompute.NONE, Recompute.FULL),
        micro_batches=(1,),
    )
    return SimulatorCosts(priced)


def cell_of(costs, schedule, *, pp=2, vpp=1, micro=4):
    context = LayoutContext(
        rules=block_rules(),
        blocks=True,
        may_idle=False,
        num_devices=pp,
        node_devices=pp,
        num_layers=len(costs.model.traced.at(1, 1).chain),
        tp_degrees=(1,),
        global_batch=micro,
    )
    space = Axes(pp=(pp,), vpp=(vpp,), schedule=(schedule,), micro_batch=(1,))
    return legal_cells(space, context)[0]


def test_ideals_and_orders_of_two_towers():
    lattice = lattice_of_flows(5, TOWERS, 100)
    # Any of 0 to 2 blocks of each tower, and all five blocks.
    assert lattice.count == 3 * 3 + 1
    assert len(lattice.orders(100)) == math.comb(4, 2)
    assert lattice.orders(100)[0] == (0, 1, 2, 3, 4)
    assert lattice.orders(5) is None
    assert lattice_of_flows(5, TOWERS, 9) is None
    assert lattice.blocks(0, lattice.count - 1) == (0, 1, 2, 3, 4)
    assert not lattice.is_chain
    chain = lattice_of_flows(4, [(0, 1), (1, 2), (2, 3), (0, 3)], 100)
    assert chain.is_chain
    assert len(chain.pairs[0]) == 4 * 5 // 2
    for each in (lattice, chain):
        for smaller, larger in zip(*each.pairs, strict=True):
            assert each.first_blocks[smaller, larger] == each.blocks(smaller, larger)[0]


def test_blocks_that_could_change_places_keep_their_order():
    # Twelve tables that one block takes: 2 ** 12 sets of them, but only 13 that differ.
    flows = [(k, 12) for k in range(12)] + [(12, 13)]
    assert lattice_of_flows(14, flows, 700) is None
    alike = [(k, k + 1) for k in range(11)]
    lattice = lattice_of_flows(14, flows, 700, alike=alike)
    assert lattice.count == 13 + 2
    assert lattice.is_chain
    # Half of them are larger: as many of each as one likes.
    sizes = [(k, k + 2) for k in range(10)]
    assert lattice_of_flows(14, flows, 700, alike=sizes).count == 7 * 7 + 2


def test_sets_of_blocks_that_differ_by_an_exchange_count_once():
    fewer = 0
    for seed in range(20):
        model = BranchModel(np.random.default_rng(seed), "any", 7, unlike=False)
        graph, flows = model.graph, model.flows
        # Blocks of a kind that take the same tensors and give theirs to the same blocks.
        groups = {}
        for k in range(6):
            takes = tuple(p for p in flows if k in flows[p])
            groups.setdefault((graph.chain[k].kind, takes, tuple(flows[k])), []).append(k)
        every = lattice_of_flows(7, graph.flows, 1000)
        differ = {
            tuple(sum(m >> k & 1 for k in group) for group in (*groups.values(), [6]))
            for m in every.members
        }
        assert lattice_of(graph, 1000).count == len(differ)
        fewer += len(differ) < every.count
    assert fewer > 5


@pytest.mark.parametrize("limit", [6, 9, 14, 22, 40, 130])
def test_the_widest_window_that_the_limit_allows(limit):
    """Against counting, for every window, the subsets that contain what their blocks take."""
    flows, n = [(0, 3), (1, 4), (3, 7), (4, 6)], 8
    later = [*flows, *((k, n - 1) for k in range(n - 1))]

    def ideals(window):
        order = [*later, *((a, b) for a in range(n) for b in range(a + window, n))]
        return [m for m in range(1 << n) if all(m >> a & 1 or not m >> b & 1 for a, b in order)]

    sizes = {window: len(ideals(window)) for window in range(1, n + 1)}
    widest = max((w for w, size in sizes.items() if size <= limit), default=1)
    found = widest_lattice(n, flows, limit)
    assert sorted(found.members) == ideals(widest)
    assert found.complete == (sizes[n] <= limit)


def test_no_cut_where_nothing_crosses():
    # Block 1 has no user: between {0, ...} there is always the tensor of 0 but not behind {1}.
    lattice = lattice_of_flows(3, [(0, 2)], 100)
    legal = {lattice.blocks(0, k) for k in range(lattice.count) if lattice.cuts[k]}
    assert legal == {(0,), (0, 1)}
    with pytest.raises(InputError, match="block 1 cannot take a tensor of block 2"):
        lattice_of_flows(3, [(2, 1)], 100)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_programme_over_ideals_prices_as_the_chain_of_its_order_does(shape, schedule):
    for number in range(4):
        rng = np.random.default_rng([7, SHAPES.index(shape), number])
        model = BranchModel(rng, shape, 6, unlike=True)
        if not model.graph.branches:
            continue
        roomy = costs_of(model)
        cell = cell_of(roomy, schedule)
        lattice = lattice_of(model.graph, 1000)
        need = max(r.peak_bytes for r in roomy.predict(some_plan(roomy, cell)).ranks)
        costs = costs_of(model, memory_bytes=need)
        problem = costs.over_ideals(lattice).problem(cell)
        found = partition(problem)
        assert found is not None
        stages = problem.stages(found.starts)
        entries = tuple(model.graph.chain[k].entry for stage in stages for k in stage)
        ordered = costs_of(Ordered(model, entries), memory_bytes=need)
        chain = ordered.problem(cell)
        strategies = found.strategies
        starts = tuple(itertools.accumulate(map(len, stages[:-1]), initial=0))
        assert step_time(chain, starts, strategies) == pytest.approx(found.step_time_s, rel=1e-12)
        ends = (*starts[1:], 6)
        plan = ordered.plan(cell, Partition(starts=starts, strategies=strategies, step_time_s=0.0))
        prediction = ordered.predict(plan)
        assert found.step_time_s <= prediction.step_time_s.value * (1 + 1e-12)
        for stage, (i, j) in enumerate(zip(starts, ends, strict=True)):
            counted = stage_memory_bytes(chain, stage, i, strategies[i:j])
            assert counted <= need
            assert counted == pytest.approx(prediction.ranks[stage].peak_bytes, abs=64)
        # The best of any order, each solved as a chain.
        for order in lattice.orders(1000):
            names = tuple(model.graph.chain[k].entry for k in order)
            one = partition(costs_of(Ordered(model, names), memory_bytes=need).problem(cell))
            assert one is None or found.step_time_s <= one.step_time_s * (1 + 1e-12)


def some_plan(costs, cell):
    found = partition(costs.problem(cell))
    return costs.plan(cell, found)


def test_two_equal_towers_are_cut_across():
    """Two towers of two equal blocks: with the blocks of one tower before those of the other, a
    stage boundary after two and a half blocks' work lies in the middle of a block only by luck."""
    rng = np.random.default_rng(0)
    model = BranchModel(rng, "towers", 6, unlike=False)
    answer = search(
        model,
        cluster(1, 2, inner=link(bandwidth=1e12)),
        Workload(global_batch=8, sequence_length=1, precision="bf16"),
        space=Axes(pp=(2,), schedule=("1f1b",), micro_batch=(1,)),
        stack=load_stack(),
    )
    assert answer.status == "optimal"
    assert answer.prediction.stages[1].receives  # says what crosses
    assert sorted(answer.plan.block_entries) == sorted(r.entry for r in model.graph.chain)


def test_a_lattice_that_is_too_large_keeps_the_traced_order_and_says_what_is_proved(monkeypatch):
    rng = np.random.default_rng(5)
    model = BranchModel(rng, "towers", 7, unlike=True)
    work = Workload(global_batch=8, sequence_length=1, precision="bf16")
    asked = {
        "space": Axes(pp=(2,), schedule=("1f1b",), micro_batch=(1,)),
        "stack": load_stack(),
    }
    exact = search(model, cluster(1, 2), work, **asked)
    monkeypatch.setattr(branch_solver, "MOST_IDEALS", 5)
    kept = search(model, cluster(1, 2), work, **asked)
    assert kept.plan.block_entries == tuple(ref.entry for ref in model.graph.chain)
    assert kept.bound <= exact.step_time_s * (1 + 1e-12)
    assert kept.step_time_s >= exact.step_time_s * (1 - 1e-12)


def test_a_window_of_a_large_lattice_beats_the_traced_order():
    # 157 ideals; with 100 at most, a window of them.
    model = BranchModel(np.random.default_rng([1, 0, 2]), "towers", 24, unlike=True)
    costs = costs_of(model, pp=4, micro=16)
    cell = cell_of(costs, "1f1b", pp=4, micro=16)

    def refined(most_ideals):
        lattice = lattice_of(model.graph, most_ideals)
        solver = BranchSolver(costs, lattice, solver="auto", seed=0)
        return lattice, solver.refine(cell, np.inf, 0.0)

    _, traced = refined(1)
    window, found = refined(100)
    complete, exact = refined(1000)
    assert not window.complete
    assert len(traced.plan.block_entries) + 1 < window.count <= 100 < complete.count
    assert found.step_time_s < 0.99 * traced.step_time_s
    # No order has a plan in half the time.
    solver = BranchSolver(costs, complete, solver="auto", seed=0)
    assert solver.refine(cell, 0.5 * exact.step_time_s, 0.0).plan is None
    assert exact.step_time_s <= found.step_time_s * (1 + 1e-12)
    assert found.bound_s <= exact.step_time_s * (1 + 1e-12)


def test_a_window_keeps_distant_blocks_in_the_traced_order():
    # Five blocks without flows; the last comes after all. In no ideal is a block two or more
    # behind a missing one.
    lattice = lattice_of_flows(6, [], 1000, window=2)
    ideals = [set(lattice.blocks(0, k)) for k in range(lattice.count)]
    assert len(ideals) == 1 + 5 + 5  # the empty one, prefixes with and without a gap before the end
    for blocks in ideals:
        assert max(blocks, default=0) - min(set(range(7)) - blocks) < 2


def test_a_plain_chain_is_solved_by_the_chains_solver():
    drawn = (BranchModel(np.random.default_rng(k), "skips", 3, unlike=True) for k in range(99))
    plain = next(model for model in drawn if not model.graph.branches)
    solver = cell_solver(costs_of(plain), solver="auto", seed=0)
    assert not isinstance(solver, BranchSolver)
    towers = BranchModel(np.random.default_rng(1), "towers", 6, unlike=True)
    assert isinstance(cell_solver(costs_of(towers), solver="auto", seed=0), BranchSolver)


def test_stages_run_their_blocks_in_the_traced_order():
    model = BranchModel(np.random.default_rng(2), "towers", 6, unlike=True)
    costs = costs_of(model)
    plan = some_plan(costs, cell_of(costs, "1f1b"))
    entries = [ref.entry for ref in model.graph.chain]
    assert in_traced_stages(plan, entries) == plan
    first = plan.stages[0].last_block
    turned = (*reversed(plan.block_entries[:first]), *plan.block_entries[first:])
    assert in_traced_stages(replace(plan, block_entries=turned), entries) == plan


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("shape", SHAPES)
def test_parts_of_blocks_bound_every_order(shape, schedule):
    """The linear programme is under the best of all orders, and not by far."""
    near = []
    for number in range(4):
        model = BranchModel(
            np.random.default_rng([8, SHAPES.index(shape), number]), shape, 7, unlike=True
        )
        if not model.graph.branches:
            continue
        costs = costs_of(model, pp=3)
        cell = cell_of(costs, schedule, pp=3)
        lattice = lattice_of(model.graph, 1000)
        best = partition(costs.over_ideals(lattice).problem(cell))
        solver = BranchSolver(costs, lattice, solver="auto", seed=0)
        bound = max(solver.bounds(cell))
        assert bound <= best.step_time_s * (1 + 1e-9)
        near.append(bound / best.step_time_s)
    # 0.58 at least. Steps with a constant that both have alike came to 0.95 (2026-11-23).
    assert not near or min(near) > 0.55


def test_parts_of_tables_are_dealt_out_evenly():
    """Two stages of one micro-batch: tables whose optimizer takes long go where it ends first."""
    forward, backward = np.full(5, 1.0), np.full((5, 1), 2.0)
    nothing = np.zeros((5, 6))
    problem = PartitionProblem(
        kinds=(0, 0, 0, 0, 1),
        strategies=("none",),
        schedule="1f1b",
        num_microbatches=1,
        costs=(
            BlockCosts(
                forward_s=forward,
                backward_s=backward,
                saved_bytes=0 * backward,
                transient_bytes=0 * backward,
            ),
        ),
        slots=(StageSlot(in_flight=1, capacity_bytes=1.0, loads=()),) * 2,
        static_bytes=(nothing,),
        tails_s=(nothing,),
        edge_bytes=nothing,
        send_forward_s=np.zeros((2, 5)),
        send_backward_s=np.zeros((2, 5)),
    )
    tails = np.asarray([[10.0, 10.0, 10.0, 10.0, 0.0]] * 2)
    needs = RankNeeds(
        owner=(0, 1),
        states=(np.zeros(5), np.zeros(5)),
        rise_bytes=np.zeros(5),
        crossing_s=1.0,
        tail_s=5.0,
        tails_s=tails,
        any_order=True,
    )
    bound = relaxed_bound(problem, needs)
    # 15 s of work, 1 s of messages, 5 s that any stage takes. With x of four tables first:
    # 10 x = 10 (4 - x) - 2 x - 0.5, x = 39.5 / 22.
    assert bound == pytest.approx(16 + 5 + 10 * 39.5 / 22, rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_least_bytes_of_blocks_are_those_of_the_priced_chain(shape):
    rng = np.random.default_rng([4, SHAPES.index(shape)])
    model = costs_of(BranchModel(rng, shape, 6, unlike=True)).model
    assert model.least_bytes(1, 1) == pytest.approx(
        model.chain(1, (0,), pipelined=True).first_bytes
    )
