"""The speed of light of an op on a device: what its peak rate and its memory bandwidth allow.

Roofline: Williams, Waterman and Patterson, CACM 52(4), 2009. A matmul of b products [m, k] x [k, n]
works 2 b m n k flop and moves b (m k + k n + m n) elements; attention works 4 b h s_q s_kv d flop
forward (half where causal) and 2.5 times that backward (Dao, FlashAttention-2, arXiv 2307.08691,
section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.hardware.catalogue.device import Device, twin_type
from profiles.hardware.kernels.attention_surface import BACKWARD_FLOP
from profiles.model.graph import DTYPE_BYTES, AttentionShape, MatmulShape, Phase


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """Least seconds of ops on one device."""

    device: Device

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the main memory."""
        return self.device.memory_bandwidth_bytes_per_s.value

    def rate(self, dtype: str) -> float:
        """Dense peak flop/s for a data type.

        A type without a rate of its own (an fp32 product inside a bf16 model on a device that lists
        none) runs at the slowest rate that there is.
        """
        peaks = self.device.peak_flop_per_s
        for name in (dtype, twin_type(dtype)):
            if name in peaks:
                return peaks[name].value
        return min(peak.value for peak in peaks.values())

    def of(self, work_flop: float, moved_bytes: float, dtype: str) -> float:
        """Least seconds of an op with this work and traffic."""
        return max(work_flop / self.rate(dtype), moved_bytes / self.bandwidth)

    def matmul(self, shape: MatmulShape, dtype: str) -> float:
        """Least seconds of a batch of products."""
        work = 2.0 * shape.batch * shape.m * shape.n * shape.k
        elements = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
        return self.of(work, shape.batch * elements * DTYPE_BYTES.get(dtype, 4.0), dtype)

    def attention(self, shape: AttentionShape, dtype: str, phase: Phase) -> float:
        """Least seconds of a fused attention call."""
        work = 4.0 * shape.batch * shape.heads * shape.q_len * shape.kv_len * shape.head_dim
        work *= 0.5 if shape.causal else 1.0
        rows = 2 * shape.heads * shape.q_len + 2 * shape.kv_heads * shape.kv_len
        moved = shape.batch * shape.head_dim * rows * DTYPE_BYTES.get(dtype, 4.0)
        if phase is Phase.BACKWARD:
            # It reads q, k, v, o and do and writes dq, dk and dv: twice the forward's tensors.
            work, moved = BACKWARD_FLOP * work, 2 * moved
        return self.of(work, moved, dtype)
