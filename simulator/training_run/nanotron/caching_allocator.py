"""`CachingAllocator`: what torch's CUDA allocator reserves for a sequence of tensors.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.1 to 2.5, no settings): sizes are
multiples of 512 bytes; a tensor takes the smallest free block that holds it, of which more than
1 MiB left over is split off; where none does, a new segment is taken from the device, of 20 MiB for
what is below 10 MiB and else of the size to the next 2 MiB; neighbours in a segment are joined when
both are free; where the device has no room, whole free segments are given back first. Tensors of
1 MiB or less live in a pool of their own, which is not counted here.

A tensor that a collective's stream reads may be handed out again only when that stream has passed
it (Tensor.record_stream). How far the host is ahead of the device is counted in launches.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

_ROUND = 512
_SMALL = 2**20
_MEDIUM, _MEDIUM_SEGMENT = 10 * 2**20, 20 * 2**20
_LARGE_ROUND = 2 * 2**20


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, between its neighbours; `number` orders blocks of one size."""

    size: int
    number: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = False


@dataclass(slots=True, kw_only=True)
class CachingAllocator:
    """An allocator that follows one program.

    capacity_bytes    what the device has for its segments
    launches_ahead    launches by which the host is ahead: a tensor that a collective reads waits
                      for so many more after it was freed; 0 for a host that never is
    peak_reserved_bytes   most that segments took;  peak_allocated_bytes  most that tensors took
    is_overfull       a tensor was asked for that did not fit: the program would have failed
    """

    capacity_bytes: float
    launches_ahead: int = 0
    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    is_overfull: bool = False
    _reserved: int = 0
    _allocated: int = 0
    _launches: int = 0
    _count: int = 0
    _free: list[tuple[int, int, Block]] = field(default_factory=list)
    _waiting: list[tuple[int, Block]] = field(default_factory=list)
    _passed: int = 0

    def allocate(self, size_bytes: float) -> Block | None:
        """A block of at least so many bytes; None for what the pool of small tensors serves."""
        size = -(-int(size_bytes) // _ROUND) * _ROUND
        if size <= _SMALL:
            return None
        self._take_back()
        place = bisect.bisect_left(self._free, (size, -1))
        if place < len(self._free):
            block = self._free.pop(place)[2]
            block.is_free = False
        else:
            block = self._segment(size)
        if block.size - size > _SMALL:
            self._split(block, size)
        self._allocated += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated)
        return block

    def free(self, block: Block | None, *, read_by_collective: bool = False) -> None:
        """Give a tensor back; None is one of the small pool."""
        if block is None:
            return
        self._allocated -= block.size
        if read_by_collective and self.launches_ahead:
            self._waiting.append((self._launches + self.launches_ahead, block))
        else:
            self._join(block)

    def launch(self, count: int = 1) -> None:
        """The host launches so many kernels."""
        self._launches += count

    def synchronize(self) -> None:
        """The host waits for the device: nothing waits any more."""
        self._launches += self.launches_ahead
        self._take_back()

    def _take_back(self) -> None:
        while self._passed < len(self._waiting):
            due, block = self._waiting[self._passed]
            if due > self._launches:
                return
            self._join(block)
            self._passed += 1

    def _segment(self, size: int) -> Block:
        taken = _MEDIUM_SEGMENT if size < _MEDIUM else -(-size // _LARGE_ROUND) * _LARGE_ROUND
        if self._reserved + taken > self.capacity_bytes:
            self.synchronize()
            self._give_back()
            self.is_overfull |= self._reserved + taken > self.capacity_bytes
        self._reserved += taken
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._reserved)
        return self._block(taken)

    def _give_back(self) -> None:
        """Return every whole free segment to the device (`release_cached_blocks`)."""
        kept = []
        for entry in self._free:
            block = entry[2]
            if block.before is None and block.after is None:
                self._reserved -= block.size
            else:
                kept.append(entry)
        self._free = kept

    def _block(self, size: int) -> Block:
        self._count += 1
        return Block(size, self._count)

    def _split(self, block: Block, size: int) -> None:
        rest = self._block(block.size - size)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._keep(rest)

    def _keep(self, block: Block) -> None:
        block.is_free = True
        bisect.insort(self._free, (block.size, block.number, block))

    def _drop(self, block: Block) -> None:
        del self._free[bisect.bisect_left(self._free, (block.size, block.number))]

    def _join(self, block: Block) -> None:
        after = block.after
        if after is not None and after.is_free:
            self._drop(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        before = block.before
        if before is not None and before.is_free:
            self._drop(before)
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            block = before
        self._keep(block)
