"""Every ideal (down-closed set) of an order, with the links that remove one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled

Index = NDArray[np.int32]
Bits = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideals:
    """Ideals by size, the empty one first and the full one last.

    first, block, smaller   ideal i without its maximal block block[j] is ideal smaller[j], for j
                            from first[i] to first[i + 1]; blocks ascend. Blocks are numbered in a
                            topological order.
    """

    first: NDArray[np.int64]
    block: Index
    smaller: Index

    @property
    def count(self) -> int:
        return len(self.first) - 1


def chain(count: int) -> Ideals:
    """The ideals of blocks that stand in a row: the prefixes."""
    return Ideals(
        first=np.maximum(np.arange(-1, count + 1, dtype=np.int64), 0),
        block=np.arange(count, dtype=np.int32),
        smaller=np.arange(count, dtype=np.int32),
    )


def enumerate_ideals(count: int, order: NDArray[np.int32], limit: int) -> Ideals | None:
    """All ideals of `count` topologically numbered blocks under the pairs `order` [pairs, 2].

    None where there are more than `limit`. Time and memory grow with ideals x count / 64.
    """
    before = _rows(count, order[:, 1], order[:, 0])
    after = _rows(count, order[:, 0], order[:, 1])
    total, child, block, parent = _grow(count, *before, *after, limit)
    if total < 0:
        return None
    by_child = np.lexsort((block, child))
    first = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.bincount(child, minlength=total), out=first[1:])
    return Ideals(first=first, block=block[by_child], smaller=parent[by_child])


def _rows(count: int, keys: Index, values: Index) -> tuple[NDArray[np.int64], Index]:
    by_key = np.argsort(keys, kind="stable")
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=first[1:])
    return first, values[by_key].astype(np.int32)


@compiled
def _grow(
    count: int,
    before_first: NDArray[np.int64],
    before: Index,
    after_first: NDArray[np.int64],
    after: Index,
    limit: int,
) -> tuple[int, Index, Index, Index]:
    words = (count + 63) // 64 if count else 1
    room = 1024
    sets = np.zeros((room, words), dtype=np.uint64)
    ready = np.zeros((room, words), dtype=np.uint64)
    hashes = np.zeros(room, dtype=np.uint64)
    keys = np.zeros(count, dtype=np.uint64)
    seed = np.uint64(88172645463325252)
    for b in range(count):
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        keys[b] = seed
        if before_first[b] == before_first[b + 1]:
            ready[0, b >> 6] |= np.uint64(1) << np.uint64(b & 63)
    slots = np.full(4096, -1, dtype=np.int32)
    slots[0] = 0
    total, at, links = 1, 0, 0
    link_child = np.zeros(4096, dtype=np.int32)
    link_block = np.zeros(4096, dtype=np.int32)
    link_parent = np.zeros(4096, dtype=np.int32)
    candidate = np.zeros(words, dtype=np.uint64)
    while at < total:
        for b in range(count):
            bit = np.uint64(1) << np.uint64(b & 63)
            if not ready[at, b >> 6] & bit:
                continue
            for w in range(words):
                candidate[w] = sets[at, w]
            candidate[b >> 6] |= bit
            key = hashes[at] ^ keys[b]
            slot = np.int64(key & np.uint64(len(slots) - 1))
            found = -1
            while slots[slot] >= 0:
                other = slots[slot]
                if hashes[other] == key:
                    same = True
                    for w in range(words):
                        if sets[other, w] != candidate[w]:
                            same = False
                            break
                    if same:
                        found = other
                        break
                slot = (slot + 1) & (len(slots) - 1)
            if found < 0:
                if total >= limit:
                    return -1, link_child, link_block, link_parent
                if total == room:
                    sets = np.concatenate((sets, np.zeros_like(sets)))
                    ready = np.concatenate((ready, np.zeros_like(ready)))
                    hashes = np.concatenate((hashes, np.zeros_like(hashes)))
                    room *= 2
                found = total
                slots[slot] = total
                hashes[total] = key
                for w in range(words):
                    sets[total, w] = candidate[w]
                    ready[total, w] = ready[at, w]
                ready[total, b >> 6] &= ~bit
                for j in range(after_first[b], after_first[b + 1]):
                    later = after[j]
                    free = True
                    for k in range(before_first[later], before_first[later + 1]):
                        need = before[k]
                        if not candidate[need >> 6] & (np.uint64(1) << np.uint64(need & 63)):
                            free = False
                            break
                    if free:
                        ready[total, later >> 6] |= np.uint64(1) << np.uint64(later & 63)
                total += 1
                if 2 * total > len(slots):
                    slots = np.full(2 * len(slots), -1, dtype=np.int32)
                    for i in range(total):
                        place = np.int64(hashes[i] & np.uint64(len(slots) - 1))
                        while slots[place] >= 0:
                            place = (place + 1) & (len(slots) - 1)
                        slots[place] = i
            if links == len(link_child):
                link_child = np.concatenate((link_child, np.zeros_like(link_child)))
                link_block = np.concatenate((link_block, np.zeros_like(link_block)))
                link_parent = np.concatenate((link_parent, np.zeros_like(link_parent)))
            link_child[links], link_block[links], link_parent[links] = found, b, at
            links += 1
        at += 1
    return total, link_child[:links], link_block[:links], link_parent[:links]
