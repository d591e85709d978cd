"""Muon: matrices of a rank, and the products that orthogonalize their updates.

Muon (Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024-12-08,
kellerjordan.github.io/posts/muon) keeps one momentum per weight and replaces the momentum X of each
matrix [m, n], m <= n, by five iterations of Newton-Schulz in bf16:

    A = X X^T,  X <- a X + (b A + c A A) X          4 m^2 n + 2 m^3 FLOPs each

Embeddings, head, norms and biases keep AdamW (Liu et al., arXiv 2502.16982, section 2.2). A matrix
is one weight as stored by the framework: queries, keys and values together, both gates of a
feed-forward together, and each expert separately.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass

from profiles.model.figures.transformer import Transformer
from simulator.training_run.run.low_bits import MUON
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.layer_work import LayerWork, layer_products
from simulator.training_run.work.matmul import Matmul
from simulator.training_run.work.rank_parameters import expert_copies, expert_ranks
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.work_seconds import work_seconds

ITERATIONS = 5
_TYPE = "bfloat16"

Shape = tuple[float, float]
"""The shorter and the longer side of a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMatrices:
    """Matrices of the fullest pipeline rank that are whole, or that are split in the same way.

    elements   of a rank, after tensor and expert parallelism
    count      number of matrices
    seconds    of Newton-Schulz on all whole matrices, at the surfaces' speed
    splits     number of tensor-parallel ranks that split each matrix
    shards     number of ranks that share the states of, and the work on, the same matrices
    """

    elements: float
    count: float
    seconds: float
    splits: int
    shards: int

    @property
    def whole_elements(self) -> float:
        """Elements before tensor parallelism."""
        return self.elements * self.splits

    @property
    def cut(self) -> float:
        """Share of the elements in a matrix that is cut between two shards: states are cut into
        equal parts at any place (arXiv 2502.16982, section 2.3), 0 without shards."""
        return min(1.0, 1.0 / self.count) if self.shards > 1 else 0.0

    @property
    def handled(self) -> float:
        """Share of the matrices that a rank orthogonalizes. A matrix that is cut between two ranks
        is orthogonalized on both."""
        return min(1.0, 1.0 / self.shards + self.cut)


def rank_matrices(run: TrainingRun) -> tuple[RankMatrices, ...]:
    """Matrices common to all replicas, and those of experts; none unless the optimizer is Muon."""
    if run.optimizer != MUON:
        return ()
    model, degrees = run.model, run.degrees
    full, _ = stage_layers(run)
    sharded = run.zero_stage >= 1
    shared, experts = _average_layer(model)
    found = []
    for shapes, ranks, splits, shards in (
        (shared, 1, degrees.tp, run.sharing_ranks),
        (experts, degrees.ep, expert_ranks(run) if degrees.ep == 1 else 1, expert_copies(run)),
    ):
        held = {shape: count * full / ranks for shape, count in shapes}
        if held:
            found.append(
                RankMatrices(
                    elements=sum(m * n * count for (m, n), count in held.items()) / splits,
                    count=sum(held.values()),
                    seconds=newton_schulz_s(run.device, tuple(held.items())),
                    splits=splits,
                    shards=int(shards) if sharded else 1,
                )
            )
    return tuple(found)


@functools.lru_cache(maxsize=256)
def _average_layer(
    model: Transformer,
) -> tuple[tuple[tuple[Shape, float], ...], tuple[tuple[Shape, float], ...]]:
    """(shape, number) of an average layer's matrices: all except experts', and experts'."""
    share = model.num_expert_layers / model.num_layers
    shared, experts = defaultdict[Shape, float](float), defaultdict[Shape, float](float)
    for kind, weight in ((False, 1.0 - share), (True, share)):
        if weight:
            products, grouped = layer_products(
                model, experts=kind, tokens=1, tp=1, ep=1, dtype=_TYPE, wide=_TYPE
            )
            _count(products, weight, shared)
            _count(grouped, weight, experts)
    return tuple(shared.items()), tuple(experts.items())


def _count(products: list[Matmul], weight: float, counts: dict[Shape, float]) -> None:
    for x in products:
        if x.n * x.k * x.count:
            counts[min(x.n, x.k), max(x.n, x.k)] += weight * x.count


@functools.lru_cache(maxsize=4096)
def newton_schulz_s(device: str, shapes: tuple[tuple[Shape, float], ...]) -> float:
    """Seconds of the iterations on matrices of (shape, number), before any coefficient."""
    products = tuple(
        Matmul(*sides, dtype=_TYPE, count=ITERATIONS * count)
        for (m, n), count in shapes
        for sides in ((m, m, n), (m, m, m), (m, n, m))
    )
    (seconds,) = work_seconds([(device, LayerWork(matmuls=products))])
    return seconds.matmul_forward_s
