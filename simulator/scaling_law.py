"""The loss of a model by parameters and tokens, and the best use of a compute budget.

    L(N, D) = E + A / N^a + B / D^b        N parameters, D tokens, L nats per token
    C = 6 N D                              FLOP

Lowest loss at C (Hoffmann et al., arXiv 2203.15556, equation 4), with G = (a A / (b B))^(1 / (a +
b)):

    N = G (C / 6)^(b / (a + b))            D = (C / 6)^(a / (a + b)) / G

E, A, B, a, b are from Besiroglu et al. (arXiv 2404.10102), who repeated the fit of Hoffmann's third
approach on the points of its figure. Hoffmann's own printed values (1.69, 406.4, 410.7, 0.34, 0.28)
contradict the paper's two other approaches. The points are models of 70 M to 16 B parameters on 5
to 500 billion tokens of MassiveText. Outside of this range the law is an extrapolation
(`outside_range`), and its constants differ for other data, tokenizers and architectures (above all
experts).
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = (
    "Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, refitted by Besiroglu et al. 2024 (arXiv "
    "2404.10102)"
)
RANGE_WORDS = "fitted on 70 M to 16 B parameters and 5 to 500 B tokens"
_E, _A, _B, _ALPHA, _BETA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658
_PARAMETERS = (70e6, 16e9)
_TOKENS = (5e9, 500e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptimum:
    """Parameters and tokens with the lowest loss for a compute budget; `loss` in nats per token."""

    parameters: float
    tokens: float
    loss: float


def predicted_loss(parameters: float, tokens: float) -> float:
    """Nats per token of a dense model after its training."""
    return float(_E + _A / parameters**_ALPHA + _B / tokens**_BETA)


def optimum_of_compute(work_flop: float) -> ComputeOptimum:
    """Parameters and tokens with the lowest loss for a budget in FLOP (6 per parameter and token).

    >>> found = optimum_of_compute(5.76e23)  # Chinchilla's: 70 B on 1.4 T tokens
    >>> round(found.parameters / 1e9), round(found.tokens / 1e12, 1)
    (72, 1.3)
    """
    ratio = (_ALPHA * _A / (_BETA * _B)) ** (1 / (_ALPHA + _BETA))
    parameters = ratio * (work_flop / 6) ** (_BETA / (_ALPHA + _BETA))
    tokens = (work_flop / 6) ** (_ALPHA / (_ALPHA + _BETA)) / ratio
    return ComputeOptimum(
        parameters=parameters, tokens=tokens, loss=predicted_loss(parameters, tokens)
    )


def optimal_tokens(parameters: float) -> float:
    """The number of tokens for which a model with `parameters` parameters uses its compute best.

    >>> round(optimal_tokens(70e9) / 1e12, 1)
    1.3
    """
    ratio = (_ALPHA * _A / (_BETA * _B)) ** (1 / (_ALPHA + _BETA))
    work = (parameters / ratio) ** ((_ALPHA + _BETA) / _BETA)
    return float(work ** (_ALPHA / (_ALPHA + _BETA)) / ratio)


def outside_range(parameters: float, tokens: float) -> bool:
    """Whether the point is outside of the models that the law was fitted on."""
    return not (
        _PARAMETERS[0] <= parameters <= _PARAMETERS[1] and _TOKENS[0] <= tokens <= _TOKENS[1]
    )
