"""The caching allocator: by hand, and against a plain one that searches every block."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.training_run.nanotron.caching_allocator import Block, CachingAllocator

MIB = 2**20


def test_segments_by_size() -> None:
    allocator = CachingAllocator(capacity_bytes=math.inf)
    # 1 MiB and less is the small pool's, which is not counted.
    assert allocator.allocate(MIB) is None
    # 1.5 MiB opens a segment of 20 MiB, and the next 8 MiB come from it.
    allocator.allocate(1.5 * MIB)
    allocator.allocate(8 * MIB)
    assert allocator.peak_reserved_bytes == 20 * MIB
    # From 10 MiB on a segment of its own, to the next 2 MiB: the 10.5 MiB left do not hold 11.
    allocator.allocate(11 * MIB)
    assert allocator.peak_reserved_bytes == 32 * MIB
    # The 1 MiB that is left of 12 is too little to be split off, and counts as the tensor's.
    assert allocator.peak_allocated_bytes == (1.5 + 8 + 12) * MIB


def test_the_smallest_free_block_is_taken_and_split() -> None:
    allocator = CachingAllocator(capacity_bytes=math.inf)
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    allocator.free(large)
    allocator.free(small)
    # 20 MiB come from the 32, leaving 12; 12 fit there; 40 from the 64, leaving 24.
    for size in (20, 12, 40, 24):
        allocator.allocate(size * MIB)
    assert allocator.peak_reserved_bytes == 96 * MIB
    allocator.allocate(2 * MIB)
    assert allocator.peak_reserved_bytes == 116 * MIB


def test_neighbours_are_joined_but_not_across_segments() -> None:
    allocator = CachingAllocator(capacity_bytes=math.inf)
    whole = allocator.allocate(60 * MIB)
    allocator.free(whole)
    parts = [allocator.allocate(20 * MIB) for _ in range(3)]
    for place in (0, 2, 1):
        allocator.free(parts[place])
    allocator.allocate(60 * MIB)
    assert allocator.peak_reserved_bytes == 60 * MIB
    pair = [allocator.allocate(30 * MIB) for _ in range(2)]
    for block in pair:
        allocator.free(block)
    # Two segments of 30 MiB make no block of 40.
    allocator.allocate(40 * MIB)
    assert allocator.peak_reserved_bytes == 160 * MIB


def test_what_a_collective_reads_waits_for_the_launches() -> None:
    for ahead, reserved in ((0, 40), (10, 80)):
        allocator = CachingAllocator(capacity_bytes=math.inf, launches_ahead=ahead)
        allocator.free(allocator.allocate(40 * MIB), read_by_collective=True)
        allocator.launch(9)
        second = allocator.allocate(40 * MIB)
        assert allocator.peak_reserved_bytes == reserved * MIB
        # Waiting tensors are free for the program.
        assert allocator.peak_allocated_bytes == 40 * MIB
        allocator.free(second)
    waiting = CachingAllocator(capacity_bytes=math.inf, launches_ahead=10)
    waiting.free(waiting.allocate(40 * MIB), read_by_collective=True)
    waiting.launch(10)
    waiting.allocate(40 * MIB)
    assert waiting.peak_reserved_bytes == 40 * MIB


def test_a_full_device_gives_back_what_is_free() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    kept = allocator.allocate(30 * MIB)
    allocator.free(allocator.allocate(50 * MIB))
    # 30 + 50 + 60 are too many; without the free 50 they are not.
    allocator.allocate(60 * MIB)
    assert allocator.peak_reserved_bytes == 90 * MIB
    assert not allocator.is_overfull
    allocator.allocate(20 * MIB)
    assert allocator.is_overfull
    allocator.free(kept)


class _Plain:
    """Segments as lists of [size, owner], owner None where free; nothing is indexed."""

    def __init__(self) -> None:
        self.segments: list[list[list[int | None]]] = []
        self.order: dict[int, int] = {}

    def allocate(self, owner: int, size: int) -> None:
        size = -(-size // 512) * 512
        fitting = [
            (piece[0], self.order[id(piece)], segment, place)
            for segment in self.segments
            for place, piece in enumerate(segment)
            if piece[1] is None and (piece[0] or 0) >= size
        ]
        if not fitting:
            taken = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            piece: list[int | None] = [taken, None]
            self.order[id(piece)] = len(self.order)
            self.segments.append([piece])
            fitting = [(taken, 0, self.segments[-1], 0)]
        _, _, segment, place = min(fitting, key=lambda found: found[:2])
        held = segment[place]
        assert held[0] is not None
        if held[0] - size > MIB:
            rest: list[int | None] = [held[0] - size, None]
            self.order[id(rest)] = len(self.order)
            segment.insert(place + 1, rest)
            held[0] = size
        held[1] = owner

    def free(self, owner: int) -> None:
        for segment in self.segments:
            for piece in segment:
                if piece[1] == owner:
                    piece[1] = None
            place = 0
            while place + 1 < len(segment):
                here, after = segment[place], segment[place + 1]
                if here[1] is None and after[1] is None:
                    here[0] = (here[0] or 0) + (after[0] or 0)
                    del segment[place + 1]
                else:
                    place += 1

    @property
    def reserved(self) -> int:
        return sum(piece[0] or 0 for segment in self.segments for piece in segment)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(2 * MIB, 90 * MIB), st.integers(0, 30)),
        max_size=60,
    )
)
def test_reserves_what_a_plain_search_reserves(
    events: list[tuple[bool, int, int]],
) -> None:
    allocator, plain = CachingAllocator(capacity_bytes=math.inf), _Plain()
    # Sizes that differ, so that no tie is broken by the order of equal blocks.
    live: list[tuple[int, Block | None]] = []
    for number, (takes, size, which) in enumerate(events):
        if takes or not live:
            exact = size // 512 * 512 + 512 * number
            live.append((number, allocator.allocate(exact)))
            plain.allocate(number, exact)
        else:
            owner, block = live.pop(which % len(live))
            allocator.free(block)
            plain.free(owner)
        assert allocator.peak_reserved_bytes == plain.reserved
        assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_repeated_step_reserves_nothing_new(count: int) -> None:
    allocator = CachingAllocator(capacity_bytes=math.inf)
    first = 0
    for step in range(3):
        blocks = [allocator.allocate((11 + place) * MIB) for place in range(count)]
        for block in blocks:
            allocator.free(block)
        first = first or allocator.peak_reserved_bytes
        assert allocator.peak_reserved_bytes == first, step
