"""Documents packed into sequences, where tokens attend within their document only.

A document of l tokens has l^2 scores. So attention over documents costs as much as over sequences
of the length that a token's document has on average: sum(l^2) / sum(l), weighted by the number of
documents. Exact for kernels whose time is proportional to the scores; the kernel's rate is that of
sequences of the mean length. All sequences are priced with the same mix: waits of ranks for one
with longer documents are not included.
"""

from __future__ import annotations

Lengths = tuple[tuple[int, float], ...]
"""Tokens of a document, and the number of such documents or their share."""


def mean_document_length(lengths: Lengths, seq_len: int) -> float:
    """Mean length of the document of a token, 0 without lengths. Longer documents than a sequence
    are cut into whole sequences and a rest.

    >>> mean_document_length(((1024, 1.0), (3072, 1.0)), 4096)
    2560.0
    """
    if not lengths:
        return 0.0
    scores = sum(
        n * (length // seq_len * seq_len**2 + (length % seq_len) ** 2) for length, n in lengths
    )
    return scores / sum(n * length for length, n in lengths)


def attended_length(seq_len: int, document_length: float) -> float:
    """Tokens over which attention is computed: of a sequence, or of the mean document (0: none)."""
    return min(document_length, seq_len) if document_length else seq_len
