"""The exact programme over ideals: the split with the least largest load under a ceiling.

best[I, a, h] = min over ideals J in I, and over the kind of device that holds I \\ J, of
max(best[J, before], load(I \\ J)): the dynamic programme of Tarnawski et al. 2020. What is ours:
the J of an I are walked depth first, removing blocks in falling topological number, so each J
comes once and the load changes by the tensors of one block. A walk ends where the work alone
exceeds the ceiling, and where a block that it keeps has more work before it than the earlier
devices can hold under the ceiling. A state is dropped where the later devices cannot
hold the work that is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled
from bench.graph_partition.figures import Figures
from bench.graph_partition.ideals import Ideals
from bench.graph_partition.problem import DeviceKind, Share
from bench.graph_partition.room import room_under

_SLACK = 1e-9  # relative; loads summed along different walks differ by a few ulp
_STEPS_PER_CALL = 2_000_000  # walk steps between two looks at the clock

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """What one run under a ceiling says.

    finished   False: out of time, nothing is known; True with no shares: no split (of these ideals)
               has a largest load of `ceiling_s` or less
    """

    finished: bool
    shares: tuple[Share, ...] | None
    max_load_s: float


def run_program(
    figures: Figures, ideals: Ideals, ceiling_s: float, *, out_of_time: Callable[[], bool]
) -> ProgramAnswer:
    """The best split over `ideals` with a largest load of at most `ceiling_s`.

    Exact over these ideals up to a relative 1e-9. Ties go to what is found first.
    """
    states = (figures.accelerators + 1, figures.hosts + 1)
    best = np.full((ideals.count, *states), np.inf)
    best[0] = np.inf
    best[0, 0, 0] = 0.0
    parent = np.full((ideals.count, *states), -1, dtype=np.int32)
    by_host = np.zeros((ideals.count, *states), dtype=np.bool_)
    ceiling = ceiling_s * (1 + _SLACK)
    room = room_under(figures, ideals, ceiling)
    at = 1
    while at < ideals.count:
        if out_of_time():
            return ProgramAnswer(finished=False, shares=None, max_load_s=np.inf)
        at = _advance(
            at, _STEPS_PER_CALL, ideals.first, ideals.block, ideals.smaller,
            figures.accelerator_s, figures.host_s, figures.memory_bytes, figures.on_accelerator,
            figures.transfer_s, figures.consumers, figures.first, figures.tensor, figures.makes,
            figures.capacity_bytes * (1 + 1e-12), ceiling, room.most, room.by_accelerator,
            room.by_host, room.needed, best, parent, by_host,
        )  # fmt: skip
    last = best[-1]
    if not np.isfinite(last).any():
        return ProgramAnswer(finished=True, shares=None, max_load_s=np.inf)
    a, h = np.unravel_index(int(np.argmin(last)), last.shape)
    shares = _trace(figures, ideals, parent, by_host, int(a), int(h))
    return ProgramAnswer(finished=True, shares=shares, max_load_s=float(last[a, h]))


def _trace(
    figures: Figures,
    ideals: Ideals,
    parent: NDArray[np.int32],
    by_host: NDArray[np.bool_],
    a: int,
    h: int,
) -> tuple[Share, ...]:
    shares: list[Share] = []
    at = ideals.count - 1
    while at:
        before, host = int(parent[at, a, h]), bool(by_host[at, a, h])
        blocks = sorted(_blocks_of(ideals, at) - _blocks_of(ideals, before))
        shares.append(
            Share(
                kind=DeviceKind.HOST if host else DeviceKind.ACCELERATOR,
                blocks=tuple(sorted(int(figures.blocks[b]) for b in blocks)),
            )
        )
        at, a, h = before, a - (not host), h - host
    return tuple(reversed(shares))


def _blocks_of(ideals: Ideals, at: int) -> set[int]:
    blocks = set()
    while at:
        blocks.add(int(ideals.block[ideals.first[at]]))
        at = int(ideals.smaller[ideals.first[at]])
    return blocks


@compiled
def _advance(
    start: int,
    steps: int,
    first: Longs,
    block: Ints,
    smaller: Ints,
    accelerator_s: Floats,
    host_s: Floats,
    memory_bytes: Floats,
    on_accelerator: Flags,
    transfer_s: Floats,
    consumers: Ints,
    touch_first: Ints,
    touch: Ints,
    makes: Flags,
    capacity: float,
    ceiling: float,
    most: Ints,
    by_accelerator: Floats,
    before_host: Floats,
    needed: Floats,
    best: Floats,
    parent: Ints,
    by_host: Flags,
) -> int:
    """Fill best[start:]; returns the first ideal not done, after about `steps` steps."""
    count = len(accelerator_s)
    accelerators, hosts = best.shape[1] - 1, best.shape[2] - 1
    held = np.zeros(len(transfer_s), dtype=np.int32)  # consumers of a tensor in the share
    made = np.zeros(len(transfer_s), dtype=np.bool_)  # its producer is in the share
    at_ideal = np.zeros(count + 1, dtype=np.int32)
    link = np.zeros(count + 1, dtype=np.int64)
    removed = np.zeros(count + 1, dtype=np.int32)
    work = np.zeros(count + 1)
    host_work = np.zeros(count + 1)
    memory = np.zeros(count + 1)
    transfers = np.zeros(count + 1)
    fits = np.ones(count + 1, dtype=np.bool_)  # on an accelerator
    taken = 0
    for ideal in range(start, len(first) - 1):
        if taken > steps:
            return ideal
        useful = False
        for h in range(hosts + 1):
            useful |= most[ideal, h] >= 0
        if not useful:
            continue
        depth = 0
        at_ideal[0], link[0], removed[0] = ideal, first[ideal + 1] - 1, count
        while depth >= 0:
            j = link[depth]
            here = at_ideal[depth]
            # The block of the link before this one stays for good, with all that it needs.
            kept = False
            if j + 1 < first[here + 1]:
                kept = True
                stays = block[j + 1]
                if fits[depth]:
                    kept = False
                    for m in range(len(needed)):
                        kept |= needed[m, stays] > by_accelerator[m, ideal]
                if kept and hosts > 0 and host_work[depth] <= ceiling:
                    kept = False
                    for m in range(len(needed)):
                        kept |= needed[m, stays] > before_host[m, ideal]
            if j >= first[here] and not kept:
                link[depth] -= 1
                taken += 1
                if block[j] >= removed[depth]:
                    continue
                b = block[j]
                more_work = work[depth] + accelerator_s[b]
                more_host = host_work[depth] + host_s[b]
                more_memory = memory[depth] + memory_bytes[b]
                on = fits[depth] and on_accelerator[b]
                on = on and more_work <= ceiling and more_memory <= capacity
                on_host = hosts > 0 and more_host <= ceiling
                if not on and not on_host:
                    continue
                paid = transfers[depth]
                for k in range(touch_first[b], touch_first[b + 1]):
                    t = touch[k]
                    if makes[k]:
                        made[t] = True
                        # It paid if a consumer was held; now it pays if one is not.
                        if held[t] > 0:
                            paid -= transfer_s[t]
                        if held[t] < consumers[t]:
                            paid += transfer_s[t]
                    else:
                        held[t] += 1
                        if made[t]:
                            if held[t] == consumers[t]:
                                paid -= transfer_s[t]
                        elif held[t] == 1:
                            paid += transfer_s[t]
                depth += 1
                below = smaller[j]
                at_ideal[depth], link[depth], removed[depth] = below, first[below + 1] - 1, b
                work[depth], host_work[depth], memory[depth] = more_work, more_host, more_memory
                transfers[depth], fits[depth] = paid, on
                load = more_work + paid
                on = on and load <= ceiling
                for h in range(hosts + 1):
                    top = most[ideal, h]
                    if on:
                        for a in range(min(accelerators, top)):
                            value = max(best[below, a, h], load)
                            if value < best[ideal, a + 1, h]:
                                best[ideal, a + 1, h] = value
                                parent[ideal, a + 1, h] = below
                                by_host[ideal, a + 1, h] = False
                    if on_host and h > 0:
                        for a in range(top + 1):
                            value = max(best[below, a, h - 1], more_host)
                            if value < best[ideal, a, h]:
                                best[ideal, a, h] = value
                                parent[ideal, a, h] = below
                                by_host[ideal, a, h] = True
            else:
                if depth > 0:
                    b = removed[depth]
                    for k in range(touch_first[b], touch_first[b + 1]):
                        if makes[k]:
                            made[touch[k]] = False
                        else:
                            held[touch[k]] -= 1
                depth -= 1
    return len(first) - 1
