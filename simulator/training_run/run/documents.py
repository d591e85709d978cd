"""Documents packed into sequences, where tokens attend within their document only.

A document of l tokens has l^2 scores. So attention over documents costs as much as over sequences
of the length that a token's document has on average: sum(l^2) / sum(l), weighted by the number of
documents. Exact for kernels whose time is proportional to the scores; the kernel's rate is that of
sequences of the mean length. All sequences are priced with the same mix: waits of ranks for one
with longer documents are not included.
"""

from __future__ import annotations

from profiles.errors import InputError

Lengths = tuple[tuple[int, float], ...]
"""Tokens of a document, and the number of such documents or their share."""


def mean_document_length(lengths: Lengths, seq_len: int) -> float:
    """Mean length of the document of a token, 0 without lengths. Raises InputError for a document
    that is longer than a sequence.

    >>> mean_document_length(((1024, 1.0), (3072, 1.0)), 4096)
    2560.0
    """
    longest = max((length for length, _ in lengths), default=0)
    if longest > seq_len:
        raise InputError(
            f"--lengths: a document of {longest} tokens is longer than a sequence of {seq_len} "
            f"(--seq); give the parts into which it is cut, or a longer --seq"
        )
    if not lengths:
        return 0.0
    return sum(n * length**2 for length, n in lengths) / sum(n * length for length, n in lengths)


def attended_length(seq_len: int, document_length: float) -> float:
    """Tokens over which attention is computed: of a sequence, or of the mean document (0: none)."""
    return min(document_length, seq_len) if document_length else seq_len
