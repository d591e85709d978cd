"""What is assumed of ops whose kernels were not measured, and which measured family a memory-bound
op belongs to."""

from __future__ import annotations

from profiles.sourced import Sourced

# Medians over 7,905 bf16 shapes with m, n, k >= 1024 on each of A100, H100, H200, L40S, B200, B300,
# GB200 and GB300 (5 % to 95 % quantile: 0.49 to 0.80), and over 21,560 causal forward attention
# calls of 2,048 tokens or more on the same devices (0.36 to 0.75).
DEFAULT_MATMUL = Sourced(
    value=0.68,
    source="median of 63,240 matmuls (github.com/ai-dynamo/aiconfigurator, gemm_perf)",
    date="2026-11-21",
    method="assumed",
    uncertainty=0.35,
)
DEFAULT_ATTENTION = Sourced(
    value=0.55,
    source="median of 21,560 attention calls (github.com/ai-dynamo/aiconfigurator, "
    "context_attention_perf)",
    date="2026-11-21",
    method="assumed",
    uncertainty=0.45,
)
DEFAULT_MEMORY = Sourced(
    value=0.8,
    source="assumed: below the 0.9 of peak that BabelStream reaches (Deakin et al. 2016)",
    date="2026-11-21",
    method="assumed",
    uncertainty=0.35,
)
# Between two of those eight devices the utilisation of one shape differs by this much in log at the
# 90 % quantile (median over the 28 pairs): what borrowing adds to an interval.
BORROWED_LOG_HALF_WIDTH = 0.23
# Assumed: what it adds where one kernel stands for another (a matmul for the convolution that it
# equals, a forward for its backward, one data type for another).
SUBSTITUTE_LOG_HALF_WIDTH = 0.3
BACKWARD_ATTENTION_FLOP_RATIO = 2.5

_REDUCTIONS = ("norm", "softmax", "sum", "mean", "max", "min", "loss", "var", "prod", "cumsum")
_COPIES: tuple[str, ...] = (
    "copy",
    "clone",
    "cat",
    "embedding",
    "index",
    "gather",
    "scatter",
    "fill",
    "zero",
)
_COPIES += ("contiguous", "pad", "repeat", "roll", "stack", "where", "new_", "ones", "slice")


def memory_family(name: str) -> str:
    """Which measured family a memory-bound aten op belongs to."""
    if any(word in name for word in _REDUCTIONS):
        return "reduction"
    return "copy" if any(word in name for word in _COPIES) else "elementwise"
