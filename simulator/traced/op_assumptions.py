"""Assumed utilization of unmeasured kernels, and measured families of memory-bound ops."""

from __future__ import annotations

import math

from simulator.traced.utilisation import Utilisation


def _assumed(share: float, uncertainty: float, source: str) -> Utilisation:
    return Utilisation(
        log_value=math.log(share),
        log_half_width=math.log1p(uncertainty),
        method="assumed",
        source=source,
    )


# Medians over 7,905 bf16 shapes with m, n, k >= 1024 on each of A100, H100, H200, L40S, B200, B300,
# GB200 and GB300 (5 % to 95 % quantile: 0.49 to 0.80), and over 21,560 causal forward attention
# calls of 2,048 tokens or more on the same devices (0.36 to 0.75); 2026-11-21.
_KERNELS = "github.com/ai-dynamo/aiconfigurator"
DEFAULT_MATMUL = _assumed(0.68, 0.35, f"median of 63,240 matmuls ({_KERNELS}, gemm_perf)")
DEFAULT_ATTENTION = _assumed(
    0.55, 0.45, f"median of 21,560 attention calls ({_KERNELS}, context_attention_perf)"
)
DEFAULT_MEMORY = _assumed(
    0.8, 0.35, "assumed: below the 0.9 of peak that BabelStream reaches (Deakin et al. 2016)"
)
# Between two of those eight devices the utilisation of one shape differs by this much in log at the
# 90 % quantile (median over the 28 pairs): what borrowing adds to an interval.
BORROWED_LOG_HALF_WIDTH = 0.23
# Assumed: what it adds where one kernel stands for another (a matmul for the convolution that it
# equals, a forward for its backward, one data type for another).
SUBSTITUTE_LOG_HALF_WIDTH = 0.3

_REDUCTIONS = ("norm", "softmax", "sum", "mean", "max", "min", "loss", "var", "prod", "cumsum")
_COPIES = (
    *("copy", "clone", "cat", "embedding", "index", "gather", "scatter", "fill", "zero"),
    *("contiguous", "pad", "repeat", "roll", "stack", "where", "new_", "ones", "slice"),
)


def memory_family(name: str) -> str:
    """The measured family of a memory-bound aten op."""
    if any(word in name for word in _REDUCTIONS):
        return "reduction"
    return "copy" if any(word in name for word in _COPIES) else "elementwise"
