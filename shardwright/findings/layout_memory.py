"""Where the memory of a layout's fullest device goes."""

from __future__ import annotations

from planner.layout.layout_answer import LayoutChoice
from simulator.memory.footprint import footprint


def layout_memory(choice: LayoutChoice) -> list[tuple[str, float]]:
    """Bytes by part; they add up to what must fit (`required_memory_bytes`)."""
    memory = footprint(choice.run)
    full = memory.fullest
    found = [
        ("weights", full.parameters_bytes),
        ("gradients", full.gradients_bytes),
        ("optimizer states", full.optimizer_bytes),
        ("activations", full.activations_bytes),
        ("buffers", full.communication_bytes),
        (f"at the peak ({memory.fullest_details.moment})", full.transient_bytes),
    ]
    required = choice.required_memory_bytes
    rest = required - sum(size for _, size in found)
    if abs(rest) > 1e-3 * required:
        found.append(("room of the allocator" if rest > 0 else "freed before the peak", rest))
    return [(name, size) for name, size in found if size]
