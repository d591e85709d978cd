"""Mixed devices: against enumeration, an integer programme, the timeline and hand arithmetic."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.heterogeneous.splits import Split, best_splits, least_s
from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from tests.planner.mixed_problem import (
    MixedDevice,
    MixedProblem,
    MixedSolution,
    NoMixedSolution,
    plan_mixed_devices,
)


def problem(devices, microbatches, reduce_s, **more):
    blocks = len(devices[0].block_s)
    return MixedProblem(
        devices=tuple(devices),
        num_microbatches=microbatches,
        reduce_s=tuple(reduce_s),
        send_s=more.pop("send_s", (0.0,) * blocks),
        **more,
    )


def solved(p: MixedProblem) -> MixedSolution:
    plan = plan_mixed_devices(p)
    assert isinstance(plan, MixedSolution)
    return plan


def test_shares_follow_speed():
    # Two blocks, one micro-batch: 2 s on fast, 4 s on slow. Replicas of one device each share six
    # micro-batches 4 : 2, done after 8 s; a pipeline of both would have stages of 2 s and 1 s or
    # 1 s and 2 s: 3 + 5 * 2 = 13 s.
    fast = MixedDevice(name="fast", count=1, block_s=(1.0, 1.0))
    slow = MixedDevice(name="slow", count=1, block_s=(2.0, 2.0))
    plan = solved(problem([fast, slow], 6, (0.0, 0.0)))
    assert [r.num_microbatches for r in plan.replicas] == [4, 2]
    assert plan.step_s == 8.0
    assert plan.unused == (0, 0)


def test_slow_device_is_left_out():
    # With a reduction of 5 s the second replica saves 12 - 8 = 4 s only.
    fast = MixedDevice(name="fast", count=1, block_s=(1.0, 1.0))
    slow = MixedDevice(name="slow", count=1, block_s=(2.0, 2.0))
    plan = solved(problem([fast, slow], 6, (0.0, 5.0), max_stages=1))
    assert plan.step_s == 12.0
    assert plan.unused == (0, 1)
    assert len(plan.replicas) == 1


def test_stages_are_sized_to_the_device():
    # One block more than 5 does not fit a device, so both form a pipeline: the fast one takes
    # 4 of 6 blocks (4 s), the slow one 2 (4 s); 8 + 9 * 4 = 44 s.
    fast = MixedDevice(name="fast", count=1, block_s=(1.0,) * 6, capacity_bytes=5.0)
    slow = MixedDevice(name="slow", count=1, block_s=(2.0,) * 6, capacity_bytes=5.0)
    plan = solved(problem([fast, slow], 10, (0.0, 0.0), static_bytes=(1.0,) * 6))
    (replica,) = plan.replicas
    sizes = [b - a for a, b in itertools.pairwise((*replica.split.first_blocks, 6))]
    by_name = dict(zip(replica.split.devices, sizes, strict=True))
    assert by_name == {0: 4, 1: 2}
    assert plan.step_s == 44.0


def test_memory_counts_micro_batches_in_flight():
    # A first stage of two has two micro-batches in flight: 2 blocks x (1 + 2 x 1) = 6 bytes.
    device = MixedDevice(name="only", count=2, block_s=(1.0,) * 4, capacity_bytes=6.0)
    row = (1.0,) * 4
    p = problem([device], 8, (0.0, 0.0), static_bytes=row, saved_bytes=row)
    ((split,),) = best_splits(p.tables()).values()
    assert split.first_blocks in ((0, 1), (0, 2))
    assert split.longest_s == 2.0
    tighter = MixedDevice(name="only", count=2, block_s=(1.0,) * 4, capacity_bytes=1.5)
    answer = plan_mixed_devices(
        problem([tighter], 8, (0.0, 0.0), static_bytes=row, saved_bytes=row)
    )
    assert answer == NoMixedSolution(needed_bytes=2.0, capacity_bytes=1.5)


def random_problem(rng: random.Random, *, memory: bool) -> MixedProblem:
    blocks = rng.randint(1, 4)
    devices = [
        MixedDevice(
            name=f"d{k}",
            count=rng.randint(1, 2),
            block_s=tuple(float(rng.randint(1, 6)) for _ in range(blocks)),
            capacity_bytes=float(rng.randint(2, 9)) if memory else float("inf"),
        )
        for k in range(rng.randint(1, 2))
    ]
    total = sum(device.count for device in devices)
    return problem(
        devices,
        rng.randint(1, 6),
        [float(3 * d) * rng.random() for d in range(total)],
        send_s=tuple(float(rng.randint(0, 2)) for _ in range(blocks)),
        static_bytes=(1.0,) * blocks if memory else (),
        saved_bytes=(0.5,) * blocks if memory else (),
        max_stages=rng.randint(1, 3),
    )


def pipelines(p: MixedProblem, chain: tuple[int, ...]):
    """(longest, sum) of every split of the blocks over this chain of device types."""
    n, k = p.num_blocks, len(chain)
    if k > min(n, p.max_stages):
        return
    for cuts in itertools.combinations(range(1, n), k - 1):
        edges = (0, *cuts, n)
        times = []
        for s, kind in enumerate(chain):
            a, b = edges[s], edges[s + 1]
            flight = min(k - s, p.num_microbatches)
            need = sum(p.static_bytes[a:b]) + flight * sum(p.saved_bytes[a:b])
            if need > p.devices[kind].capacity_bytes:
                break
            send = 2 * p.send_s[b] if b < n else 0.0
            times.append(sum(p.devices[kind].block_s[a:b]) + send)
        else:
            yield max(times), sum(times)


def partitions(items: tuple[int, ...]):
    """All ways to put each item into one of several ordered chains or leave it out."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for chains in partitions(rest):
        yield chains
        yield ((first,), *chains)
        for i, chain in enumerate(chains):
            for at in range(len(chain) + 1):
                yield (*chains[:i], (*chain[:at], first, *chain[at:]), *chains[i + 1 :])


def shares(total: int, parts: int):
    for bars in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *bars, total)))


def enumerated(p: MixedProblem) -> float:
    items = tuple(k for k, device in enumerate(p.devices) for _ in range(device.count))
    best = float("inf")
    for chains in set(partitions(items)):
        d = len(chains)
        if not 1 <= d <= min(len(p.reduce_s), p.num_microbatches):
            continue
        options = [list(pipelines(p, chain)) for chain in chains]
        if not all(options):
            continue
        for share in shares(p.num_microbatches, d):
            slowest = max(
                min(total + (m - 1) * longest for longest, total in option)
                for option, m in zip(options, share, strict=True)
            )
            best = min(best, slowest + p.reduce_s[d - 1])
    return best


@pytest.mark.parametrize("memory", [False, True])
def test_equals_enumeration(memory: bool):
    rng = random.Random(7)
    infeasible = 0
    for _ in range(60):
        p = random_problem(rng, memory=memory)
        expected = enumerated(p)
        plan = plan_mixed_devices(p)
        if isinstance(plan, NoMixedSolution):
            assert expected == float("inf")
            infeasible += 1
            continue
        assert plan.step_s == pytest.approx(expected, rel=1e-12)
        assert sum(r.num_microbatches for r in plan.replicas) == p.num_microbatches
        used = [k for r in plan.replicas for k in r.split.devices]
        counts = [device.count for device in p.devices]
        assert [used.count(k) + plan.unused[k] for k in range(len(counts))] == counts
    assert infeasible < 60


def certificate(p: MixedProblem, replicas: int) -> float:
    """The least pipeline seconds of so many one-device replicas, by an integer programme."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    step = model.new_int_var(0, 10**6, "step")
    all_shares, all_used = [], []
    for device in p.devices:
        for number in range(device.count):
            used = model.new_bool_var(f"{device.name}{number}")
            share = model.new_int_var(0, p.num_microbatches, f"share {device.name}{number}")
            model.add(share >= 1).only_enforce_if(used)
            model.add(share == 0).only_enforce_if(~used)
            model.add(step >= share * int(sum(device.block_s)))
            all_shares.append(share)
            all_used.append(used)
    model.add(sum(all_shares) == p.num_microbatches)
    model.add(sum(all_used) == replicas)
    model.minimize(step)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return solver.objective_value if status == cp_model.OPTIMAL else float("inf")


def test_equals_integer_programme_on_many_devices():
    rng = random.Random(3)
    for _ in range(5):
        devices = [
            MixedDevice(
                name=f"d{k}",
                count=rng.randint(1, 4),
                block_s=tuple(float(rng.randint(2, 30)) for _ in range(3)),
            )
            for k in range(3)
        ]
        total = sum(device.count for device in devices)
        reduce_s = [float(2 * d) for d in range(total)]
        p = problem(devices, 64, reduce_s, max_stages=1)
        expected = min(certificate(p, d) + reduce_s[d - 1] for d in range(1, total + 1))
        assert solved(p).step_s == expected


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_objective_is_reached(seed: int):
    # The simulated step of the chosen plan is no longer than the objective says.
    rng = random.Random(seed)
    p = random_problem(rng, memory=False)
    plan = solved(p)
    ends = []
    for r in plan.replicas:
        edges = (*r.split.first_blocks, p.num_blocks)
        kinds = r.split.devices
        times = [
            sum(p.devices[kind].block_s[a:b])
            for kind, (a, b) in zip(kinds, itertools.pairwise(edges), strict=True)
        ]
        sends = tuple(p.send_s[first] for first in r.split.first_blocks)
        part = rng.random()
        durations = Durations(
            forward_s=tuple(part * t for t in times),
            backward_s=tuple((1 - part) * t for t in times),
            send_forward_s=sends,
            send_backward_s=sends,
        )
        schedule = build_schedule("1f1b", num_ranks=len(times), num_microbatches=r.num_microbatches)
        timeline = simulate(schedule, durations)
        ends += [timeline.rank_end_s(rank) for rank in range(len(times))]
    reduce_s = plan.step_s - max(r.pipeline_s for r in plan.replicas)
    assert max(ends) + reduce_s <= plan.step_s * (1 + 1e-9)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_more_devices_are_never_slower(seed: int):
    p = random_problem(random.Random(seed), memory=False)
    more = MixedProblem(
        devices=(
            *p.devices,
            MixedDevice(name="more", count=1, block_s=(4.0,) * p.num_blocks),
        ),
        num_microbatches=p.num_microbatches,
        send_s=p.send_s,
        reduce_s=(*p.reduce_s, 0.0),
        max_stages=p.max_stages,
    )
    assert solved(more).step_s <= solved(p).step_s * (1 + 1e-12)


def test_wrong_numbers_are_named():
    device = MixedDevice(name="one", count=1, block_s=(1.0, 1.0))
    with pytest.raises(InputError, match=r"one: 1 devices and 2 block times; .* each of 3 blocks"):
        MixedProblem(devices=(device,), num_microbatches=1, send_s=(0.0,) * 3, reduce_s=(0.0,))
    with pytest.raises(InputError, match="static_bytes has 1 entries for 2 blocks"):
        problem([device], 1, (0.0,), static_bytes=(1.0,))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_bound_of_a_split_is_not_above_its_timeline(seed: int):
    rng = random.Random(seed)
    count, microbatches = rng.randint(1, 5), rng.randint(1, 9)
    times = [rng.choice((1.0, 1.5, rng.uniform(0.1, 4.0))) for _ in range(count)]
    part = rng.random()
    durations = Durations(
        forward_s=tuple(part * t for t in times),
        backward_s=tuple((1 - part) * t for t in times),
        send_forward_s=(0.0,) * count,
        send_backward_s=(0.0,) * count,
    )
    schedule = build_schedule("1f1b", num_ranks=count, num_microbatches=microbatches)
    ends = simulate(schedule, durations)
    split = Split(
        longest_s=max(times),
        sum_s=sum(times),
        devices=(0,) * count,
        first_blocks=tuple(range(count)),
    )
    end_s = max(ends.rank_end_s(rank) for rank in range(count))
    assert least_s(max(times), sum(times), count, microbatches) <= end_s * (1 + 1e-12)
    assert end_s <= split.pipeline_s(microbatches) * (1 + 1e-12)
    even = least_s(1.0, float(count), count, microbatches)
    assert even <= count + microbatches - 1.0
    if microbatches > count:
        assert even == count + microbatches - 1.0
