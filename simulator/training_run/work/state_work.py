"""Operations and bytes of the recurrence of a state layer, on one device and micro-batch.

Symbols: T tokens, H heads of size P on this rank, state N, G groups, chunks of Q tokens.

`ssd` (Mamba-2, arXiv 2405.21060, section 6 and listing 1), per chunk, causality not used:
    C B^T              G x [Q, N] x [N, Q]
    its mask times X   H x [Q, Q] x [Q, P]
    states             H x [N, Q] x [Q, P]
    out of states      H x [Q, N] x [N, P]
`delta` (gated delta rule, arXiv 2412.06464, section 3.3; the UT transform of arXiv 2406.06484,
section 3.2): K K^T and Q K^T per head, both of the masked products with values and keys (W, U and
the outputs), and three products with the state. The triangular inverse is left out (Q^2 / 3 each).
`scan` (Mamba, arXiv 2312.00752, section 3.3.2): no matmuls; 9 flop per channel, state and token on
vector units (discretization, product, sum, output): `scan_flop`.

`ssd` keeps neither C B^T nor the states for its backward, which recomputes both, and computes the
product of the outputs' gradient with X twice, for C B^T and for the decays
(github.com/state-spaces/mamba 01b717a, mamba_ssm/ops/triton/ssd_combined.py,
_mamba_chunk_scan_combined_bwd: 8 products per head and 3 per group, of which 6 and 2 are
gradients). For `delta` only gradients are counted.

Each product is one batched call that reads its operands from memory and writes its result there, as
in mamba_ssm's Triton kernels except for the mask's product. This, and unused causality, make it an
upper bound by count; tiles of 64 to 128 make it a lower bound by kernel quality. One public
measurement of the forward: 0.65 ms for 8,192 tokens, 128 heads of 64, N 128, G 1, on an H100
(github.com/vllm-project/vllm pull request 27299, 2025-10-25, column "Original"); the products and
states here take 0.82 ms with Q 256. We know no measurement of the backward by shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model.figures.transformer import Transformer
from simulator.training_run.work.matmul import Matmul

# Flop per channel, state and token of the selective scan (arXiv 2312.00752, appendix D).
_SCAN_FLOP = 9.0
# The backward of a scan runs the forward again, then both recurrences (section 3.3.2 there).
SCAN_BACKWARD = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWork:
    """The recurrence of a model's average layer, on one device and micro-batch.

    products     forward matmuls; each has two in the backward
    again        matmuls that the backward recomputes
    pass_bytes   moved before and after these matmuls, forward (backward: twice): convolution with
                 its activation, decays, gate and norm, and the chunks' states in fp32
    scan_flop    of a scan on vector units, forward (backward: `SCAN_BACKWARD` times)
    """

    products: tuple[Matmul, ...] = ()
    again: tuple[Matmul, ...] = ()
    pass_bytes: float = 0.0
    scan_flop: float = 0.0


def state_work(
    model: Transformer, tokens: float, seq_len: int, tp: int, dtype: str, width: float
) -> StateWork:
    """The recurrence on one of tp ranks, each with a share of the heads and groups; zero for a
    model without a state.

    width  bytes of an activation's element
    """
    x, share = model.state, model.state_share
    if x is None:
        return StateWork()
    heads, size, state = x.heads / tp, x.head_size, x.state_size
    groups = max(1.0, x.groups / tp)
    shared = 2 * groups * state
    inner = heads * size
    # Elements per token. Convolution: read and written; the recurrence's own operands are with its
    # products; then the output and its gate are read and the result is written (mamba_ssm,
    # ops/triton: conv1d, ssd_chunk_state, layernorm_gated).
    moved = 2 * (inner + (0 if x.rule == "scan" else shared)) + 3 * inner
    if x.rule == "scan":
        return StateWork(
            pass_bytes=share * (width * tokens * (moved + 4 * inner)),
            scan_flop=share * (_SCAN_FLOP * tokens * inner * state),
        )
    chunk = min(x.chunk, seq_len)
    chunks = tokens / chunk
    states = 4.0 * chunks * inner * state

    def product(m: float, n: float, k: float, each: float) -> Matmul:
        return Matmul(m, n, k, dtype, count=share * (each * chunks))

    mixed = product(chunk, size, chunk, heads)
    into = product(state, size, chunk, heads)
    out = product(chunk, size, state, heads)
    scores = product(chunk, chunk, state, groups)
    products: tuple[Matmul, ...]
    again: tuple[Matmul, ...] = ()
    if x.rule == "ssd":
        products = (scores, mixed, into, out)
        again = (scores, into, product(chunk, chunk, size, heads))
    else:
        keys = product(chunk, state, chunk, heads)
        products = (scores, scores, keys, mixed, mixed, into, out, out)
    # States are written by chunks; of `ssd` read and written once more by the pass over chunks.
    states *= 3.0 if x.rule == "ssd" else 2.0
    return StateWork(
        products=products, again=again, pass_bytes=share * (width * tokens * moved + states)
    )
