"""The whole search on a hand-made cost model: answers, proofs, infeasible, determinism."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.axes import Axes
from planner.blocks.answer import (
    SearchOptions,
    Setting,
    block_rules,
    family,
    legal_cells,
    search_setting,
)
from planner.chain.partition import partition
from planner.chain.problem import (
    BlockCosts,
    Load,
    PartitionProblem,
    StageSlot,
    stage_times,
)
from planner.chain.relaxed_bound import RankNeeds
from planner.costs.bound import lower_bound
from planner.neighbors import Neighbor
from planner.space import LayoutContext
from profiles.document import encode, to_json
from profiles.errors import InputError, UnknownNameError
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.prediction import (
    Component,
    Interval,
    Part,
    Prediction,
    RankMemory,
    StagePrediction,
)
from simulator.values.workload import Workload
from tests.oracles.chain_totals import totals_of
from tests.oracles.stage_memory import stage_memory_bytes

GIB = 2.0**30


class HandMadeCosts:
    """A chain of an embedding, equal layers and a head; figures scale as in a transformer.

    Times per sequence: layer 1 + 2 s / tp; recompute adds the forward again. Each layer has 1 GiB
    of parameters, gradients and states, divided by tp, and by dp from ZeRO 1 on.
    """

    def __init__(self, context, space, capacity_bytes):
        self.context, self.space, self.capacity_bytes = context, space, capacity_bytes
        chain = SimpleNamespace(branches=(), chain=())
        self.model = SimpleNamespace(micro_batches=(1,), graph=lambda micro_batch, tp: chain)
        self.kinds = (0, *[1] * (context.num_layers - 2), 2)

    def missing_bytes(self, cell):
        problem = self.problem(cell)
        return problem.static_bytes[0][0, -1] / cell.degrees.pp - self.capacity_bytes

    def totals(self, cell):
        return totals_of(self.problem(cell), cell)

    def rank_needs(self, cell):
        n, stages = len(self.kinds), cell.degrees.num_stages
        each = GIB / cell.degrees.tp / (cell.degrees.dp if cell.zero_stage else 1)
        return RankNeeds(
            owner=range(stages),
            states=(np.full(n, each), np.zeros(n)),
            rise_bytes=np.zeros(n),
            tails_s=np.full((stages, n), 0.2 * (cell.degrees.dp > 1)),
        )

    def problem(self, cell):
        at = np.asarray(self.kinds)
        n, m, p = len(at), cell.num_microbatches, cell.degrees.num_stages
        scale = cell.micro_batch / cell.degrees.tp * (1 + 0.05 * (cell.degrees.tp - 1))
        forward = np.asarray([0.1, 1.0, 0.8])[at] * scale
        again = {Recompute.NONE: 0.0, Recompute.ATTENTION: 0.3, Recompute.FULL: 1.0}
        keeps = {Recompute.NONE: 1.0, Recompute.ATTENTION: 0.7, Recompute.FULL: 0.1}
        kinds = self.space.strategies
        static = np.full(n, GIB / cell.degrees.tp / (cell.degrees.dp if cell.zero_stage else 1))
        total = np.concatenate([[0.0], np.cumsum(static)])
        tail = np.concatenate([[0.0], np.cumsum(np.full(n, 0.2 * (cell.degrees.dp > 1)))])
        return PartitionProblem(
            kinds=self.kinds,
            strategies=tuple(kinds),
            schedule="gpipe" if cell.schedule == "gpipe" else "1f1b",
            num_microbatches=m,
            costs=(
                BlockCosts(
                    forward_s=forward,
                    backward_s=forward[:, None] * [2.0 + again[kind] for kind in kinds],
                    saved_bytes=np.round(
                        0.5 * GIB * scale * np.ones((n, 1)) * [keeps[kind] for kind in kinds]
                    ),
                    transient_bytes=np.zeros((n, len(kinds))),
                ),
            ),
            slots=tuple(
                StageSlot(
                    in_flight=k, capacity_bytes=self.capacity_bytes, loads=(Load(in_flight=k),)
                )
                for k in (m if cell.schedule == "gpipe" else min(m, p - s) for s in range(p))
            ),
            static_bytes=(np.round(total[None, :] - total[:-1, None]),),
            tails_s=(tail[None, :] - tail[:-1, None],),
            edge_bytes=np.zeros((n, n + 1)),
            send_forward_s=np.zeros((p, n)),
            send_backward_s=np.zeros((p, n)),
        )

    def plan(self, cell, found):
        kinds = [self.space.strategies[index] for index in found.strategies]
        stages = tuple(
            Stage(first_block=i, last_block=j, recompute=tuple(kinds[i:j]))
            for i, j in zip(found.starts, found.ends(), strict=True)
        )
        self.last = (cell, found)
        return Plan(
            model="hand-made",
            model_hash="",
            block_entries=tuple(str(k) for k in range(len(self.kinds))),
            cluster="hand-made",
            cluster_hash="",
            workload=Workload(global_batch=cell.global_batch, sequence_length=1),
            degrees=cell.degrees,
            zero_stage=cell.zero_stage,
            micro_batch=cell.micro_batch,
            schedule=cell.schedule,
            stages=stages,
        )

    def predict(self, plan):
        cell, found = self.last
        problem = self.problem(cell)
        forward, backward = stage_times(problem, found.starts, found.strategies)
        step = found.step_time_s
        busy = float((forward + backward).max()) * cell.num_microbatches
        ranks = tuple(
            RankMemory(
                rank=plan.degrees.rank(pp=s),
                parameters_bytes=0.0,
                gradients_bytes=0.0,
                optimizer_bytes=float(problem.static_bytes[0][i, j]),
                activations_bytes=stage_memory_bytes(problem, s, i, found.strategies[i:j])
                - float(problem.static_bytes[0][i, j]),
                transient_bytes=0.0,
                communication_bytes=0.0,
                capacity_bytes=self.capacity_bytes,
                peak_time_s=0.0,
            )
            for s, (i, j) in enumerate(zip(found.starts, found.ends(), strict=True))
        )
        peak = max(rank.peak_bytes for rank in ranks)
        one = Interval(value=1.0, low=1.0, high=1.0)
        return Prediction(
            step_time_s=Interval(value=step, low=step * 0.9, high=step * 1.1),
            components=(
                Component(name=Part.COMPUTE, time_s=busy),
                Component(name=Part.BUBBLE, time_s=step - busy),
            ),
            mfu=Interval(value=0.4, low=0.4, high=0.4),
            tokens_per_s=one,
            peak_memory_bytes=Interval(value=peak, low=peak, high=peak),
            usd_per_million_tokens=None,
            kwh_per_million_tokens=one,
            bubble_fraction=(step - busy) / step,
            stages=tuple(
                StagePrediction(
                    stage=s,
                    rank=s,
                    forward_s=forward[s],
                    backward_s=backward[s],
                    optimizer_s=0.0,
                    data_parallel_s=0.0,
                )
                for s in range(plan.degrees.pp)
            ),
            ranks=ranks,
            events=(),
            sources=(),
            limit="",
            fits=all(rank.fits for rank in ranks),
        )


GROUND = LayoutContext(
    rules=block_rules(),
    blocks=True,
    may_idle=False,
    num_devices=8,
    node_devices=8,
    num_layers=14,
    tp_degrees=(1, 2, 4),
    global_batch=32,
)
PLAIN = Axes(schedule=("none", "1f1b", "gpipe"))


def setting(space=PLAIN, context=GROUND, capacity_gib=6.0):
    return Setting(context=context, costs=HandMadeCosts(context, space, capacity_gib * GIB))


def still():
    return 0.0


def run(space=PLAIN, context=GROUND, capacity_gib=6.0, **options):
    return search_setting(
        setting(space, context, capacity_gib), space, options=SearchOptions(clock=still, **options)
    )


def unpruned(space, context, capacity_gib):
    """The least step time over every cell, each solved on its own."""
    costs = HandMadeCosts(context, space, capacity_gib * GIB)
    found = [partition(costs.problem(cell)) for cell in legal_cells(space, context)]
    return min((one.step_time_s for one in found if one is not None), default=None)


@pytest.mark.parametrize("capacity_gib", [2.5, 4.0, 6.0, 30.0])
def test_pruned_and_unpruned_searches_agree(capacity_gib):
    answer = run(capacity_gib=capacity_gib)
    assert answer.step_time_s == pytest.approx(unpruned(PLAIN, GROUND, capacity_gib), rel=1e-12)
    assert answer.status == "optimal"
    assert answer.bound <= answer.step_time_s
    assert answer.cells_pruned + answer.cells_refined == answer.cells_considered
    assert answer.cells_pruned > answer.cells_refined


def test_alternatives_are_of_other_meshes_and_say_why_they_lost():
    answer = run()
    plans = [answer.plan, *(other.plan for other in answer.alternatives)]
    assert len({(p.degrees, p.schedule) for p in plans}) == len(plans) == 4
    times = [answer.step_time_s, *(other.step_time_s for other in answer.alternatives)]
    assert times == sorted(times)
    assert all(
        "slower: " in a.why_not_first or "as fast" in a.why_not_first for a in answer.alternatives
    )


def test_a_mesh_whose_layouts_do_not_fit_leaves_tries_to_others():
    # Three of nine each: the first candidates behind the best are of one mesh, and none fits.
    costs = HandMadeCosts(GROUND, PLAIN, 2.5 * GIB)
    best = {}
    for cell in legal_cells(PLAIN, GROUND):
        found = partition(costs.problem(cell))
        if found is not None:
            known = best.get(family(cell), np.inf)
            best[family(cell)] = min(known, found.step_time_s)
    found = [other.step_time_s for other in run(capacity_gib=2.5).alternatives]
    assert found == pytest.approx(sorted(best.values())[1:4])


def test_equal_inputs_give_equal_bytes():
    assert to_json(encode(run())) == to_json(encode(run()))


def test_both_solvers_give_the_same_step_time():
    space = Axes(schedule=("1f1b",), tp=(1, 2), micro_batch=(1, 2))
    small = replace(GROUND, num_layers=8)
    first = run(space, small, 4.0, solver="dp")
    second = run(space, small, 4.0, solver="ilp")
    assert first.step_time_s == pytest.approx(second.step_time_s, rel=1e-6)
    assert (first.solver, second.solver) == ("dp", "ilp")
    assert run(space, small, 4.0, solver="auto").solver == "dp"


def test_an_unknown_solver_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'ilp'"):
        run(solver="ilpp")


def test_pins_are_obeyed():
    answer = run(Axes(tp=(2,), pp=(2,), schedule=("gpipe",), zero=(0,)), capacity_gib=40.0)
    assert (answer.plan.degrees.tp, answer.plan.degrees.pp, answer.plan.schedule) == (2, 2, "gpipe")
    assert answer.plan.zero_stage == 0


def test_infeasible_names_stage_term_and_what_would_fit():
    # 14 GiB of states, one stage, tp up to 4: 3.5 GiB a device; with ZeRO 1 over dp 2 1.75.
    space = Axes(pp=(1,), zero=(0,))
    start = setting(space, capacity_gib=2.5)
    free = replace(space, zero=(1,))
    tried = [
        Neighbor("zero", (free, "same"), "zero 1", "--zero {plan.zero_stage}"),
        Neighbor("memory", (space, "other"), "more memory", "--on other"),
        Neighbor("nothing", (space, "same"), "nothing"),
        Neighbor("forbidden", (space, "none"), "a cluster that the model cannot have"),
    ]
    capacities = {"same": 2.5, "other": 8.0}

    def changed(axes, on):
        return setting(axes, capacity_gib=capacities[on]) if on in capacities else None

    answer = search_setting(
        start,
        space,
        options=SearchOptions(clock=still),
        candidates=tried,
        change=changed,
    )
    assert answer.status == "infeasible"
    assert answer.plan is None
    why = answer.infeasibility
    assert why.term == "optimizer states"
    assert why.capacity_bytes == 2.5 * GIB
    assert run(space, capacity_gib=2.5 + why.bytes_over / GIB).plan is not None
    assert run(space, capacity_gib=2.5 + 0.99 * why.bytes_over / GIB).plan is None
    assert [change.flag for change in why.relaxations] == ["--zero 1", "--on other"]
    assert all(change.step_time_s > 0 for change in why.relaxations)


def test_a_time_limit_gives_the_best_so_far_with_a_gap():
    ticks = itertools.count(1000)
    answer = search_setting(
        setting(capacity_gib=2.5),
        PLAIN,
        options=SearchOptions(clock=lambda: float(next(ticks)), time_limit_s=6.0),
    )
    assert answer.status == "feasible"
    assert 0 < answer.gap < 1
    assert answer.bound < answer.step_time_s
    assert answer.search_time_s == next(ticks) - 1001


@pytest.mark.parametrize("bound", [0.0, None])
def test_layouts_without_a_bound_prove_nothing(bound):
    """A faster plan than the best layout, where the search of layouts ended with no bound."""
    slow = run(Axes(tp=(2,), pp=(2,), schedule=("gpipe",), zero=(0,)), capacity_gib=40.0)
    layouts = replace(slow, bound=bound, status="feasible")
    answer = run(capacity_gib=40.0, layouts=layouts)
    assert answer.step_time_s < slow.step_time_s
    assert (answer.bound, answer.status) == (0.0, "feasible")
    proven = run(capacity_gib=40.0, layouts=slow)
    assert proven.status == "optimal"
    none = run(capacity_gib=0.1)
    assert run(capacity_gib=0.1, layouts=none).status == none.status == "infeasible"


def test_a_layout_that_no_plan_beats_has_the_weaker_of_the_two_proofs():
    best = run(capacity_gib=40.0)
    half = tuple(replace(part, time_s=part.time_s / 2) for part in best.prediction.components)
    step = best.prediction.step_time_s.scaled(0.5)
    fast = best.with_prediction(replace(best.prediction, step_time_s=step, components=half))
    for layouts in (best, fast):
        weaker = 0.75 * layouts.step_time_s
        kept = run(capacity_gib=40.0, layouts=replace(layouts, bound=weaker, gap=0.5))
        assert (kept.plan, kept.bound, kept.status) == (best.plan, weaker, "feasible")
        assert kept.gap == pytest.approx(0.25)
    assert kept.cells_considered == 2 * best.cells_considered


def test_a_time_limit_before_any_plan_is_an_error():
    ticks = itertools.count(5000, step=100)
    with pytest.raises(InputError, match=r"ended after [1-9]00\.0 s, before it found a plan"):
        search_setting(
            setting(),
            PLAIN,
            options=SearchOptions(clock=lambda: float(next(ticks)), time_limit_s=1.0),
        )


def test_bounds_hold_for_every_cell():
    costs = HandMadeCosts(GROUND, PLAIN, 4 * GIB)
    cells = legal_cells(PLAIN, GROUND)
    bounds = [lower_bound(cell, costs.totals(cell)) for cell in cells]
    for cell, bound in zip(cells, bounds, strict=True):
        found = partition(costs.problem(cell))
        if found is not None:
            assert bound <= found.step_time_s * (1 + 1e-12)
            assert costs.missing_bytes(cell) <= 0
