"""`LayerCounts`: elementwise work and kernel launches of one layer in a framework."""

from __future__ import annotations

from dataclasses import dataclass, fields

from profiles.document import flattened


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Counts per layer, for one architecture of its modules.

    norm_passes, activation_passes   reads and writes of a token's activations by the elementwise
               work of the forward, in units of the hidden size (norms, residuals, dropout) and of
               the inner width of the feed-forward
    backward_passes    bytes of the backward over those of the forward
    kernels_forward, kernels_backward   launched kernels
    """

    norm_passes: float
    activation_passes: float
    backward_passes: float
    kernels_forward: float
    kernels_backward: float


LAYER_KEYS = flattened(*(each.name for each in fields(LayerCounts)))
"""They are keys of a framework's file itself."""
