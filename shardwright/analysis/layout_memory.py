"""Memory of a layout's fullest device, by part."""

from __future__ import annotations

from planner.layout.layout_answer import LayoutChoice
from simulator.memory.footprint import footprint


def layout_memory(choice: LayoutChoice) -> list[tuple[str, float]]:
    """Bytes by part; they add up to `required_memory_bytes`."""
    memory = footprint(choice.run)
    full = memory.fullest
    parts = [
        ("weights", full.parameters_bytes),
        ("gradients", full.gradients_bytes),
        ("optimizer states", full.optimizer_bytes),
        ("activations", full.activations_bytes),
        ("buffers", full.communication_bytes),
        (f"at the peak ({memory.fullest_details.moment})", full.transient_bytes),
    ]
    required = choice.required_memory_bytes
    rest = required - sum(size for _, size in parts)
    if abs(rest) > 1e-3 * required:
        parts.append(("room of the allocator" if rest > 0 else "freed before the peak", rest))
    return [(name, size) for name, size in parts if size]
