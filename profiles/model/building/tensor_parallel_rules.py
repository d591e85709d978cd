"""Rules for the layers that tensor parallelism splits, by module path.

The rules are derived from the model's calls (trace_derive_tensor_parallel.py, trace_vocabulary.py)
and are part of a plan. Experts in one tensor stay whole on every rank. This file needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Rule = tuple[str, str]
"""(pattern, kind): a dotted path in which `*` matches one part, and the rule for it.

column, row                  a linear layer split by its output or input features
fused_column_3, fused_row_1:4  the same for a weight of adjacent parts (equal, or of these
                             proportions), each split separately
local_sizes view 0 2         a module with sizes of the whole in its code, see local_sizes_of
sum_gradient                 a whole parameter whose gradients are summed over the ranks
vocabulary_table, vocabulary_head  the embedding and the last linear layer, split by words where tp
                             divides their number, otherwise whole
split_tokens X, gather_tokens X, join_tokens 0   of sequence parallelism: a module that takes its
                             share of the tokens of its argument X (a name or a position), one
                             that gathers the tokens of X, and one whose output is gathered
"""

TABLE, HEAD = "vocabulary_table", "vocabulary_head"
SPLIT, GATHER, JOIN = "split_tokens", "gather_tokens", "join_tokens"


class UnevenSizeError(ValueError):
    """A number of heads or features that tp does not divide."""


def split_of(kind: str) -> tuple[str, tuple[int, ...]]:
    """`column`, `row` or "", and the proportions of the adjacent parts of the weight.

    >>> split_of("fused_column_3"), split_of("fused_row_1:4"), split_of("sum_gradient")
    (('column', (1, 1, 1)), ('row', (1, 4)), ('', ()))
    """
    if kind in ("column", "row"):
        return kind, (1,)
    if not kind.startswith("fused_"):
        return "", ()
    _, side, parts = kind.split("_")
    sizes = tuple(int(n) for n in parts.split(":"))
    return side, (1,) * sizes[0] if len(sizes) == 1 else sizes


def shares_tokens(kind: str) -> bool:
    """Whether a rule is one of sequence parallelism."""
    return kind.partition(" ")[0] in (SPLIT, GATHER, JOIN)


def has_shared_tokens(rules: tuple[Rule, ...]) -> bool:
    """Whether rules are of sequence parallelism, too."""
    return any(shares_tokens(kind) for _, kind in rules)


def fused(side: str, parts: tuple[int, ...]) -> str:
    """The inverse of split_of: the kind of a layer split by `column` or `row` in these parts."""
    if len(parts) == 1:
        return side
    same = set(parts) == {1}
    return f"fused_{side}_{len(parts) if same else ':'.join(map(str, parts))}"


_LEAST_SPLIT = 0.9


def left_whole(weights: Mapping[str, int], rules: tuple[Rule, ...], entries: Sequence[str]) -> str:
    """The largest matrix of a model's layers that tensor parallelism leaves whole; "" if it splits
    nine tenths of the elements of its first and last layer.

    weights  elements of every matrix, by name;  entries  of the model's blocks

    >>> weights = {"layers.0.qkv.weight": 12, "layers.0.up.weight": 20, "head.weight": 90}
    >>> left_whole(weights, (("layers.*.up", "column"),), ("", "layers.0"))
    'layers.0.qkv.weight'
    >>> left_whole(weights, (("layers.*.*", "column"),), ("", "layers.0"))
    ''
    """
    layers = [entry for entry in entries if entry.rpartition(".")[2].isdecimal()]
    ends = tuple(f"{entry}." for entry in (*layers[:1], *layers[-1:]))
    inside = {name: size for name, size in weights.items() if name.startswith(ends)}
    split = [pattern for pattern, kind in rules if split_of(kind)[0]]
    whole = {
        name: size
        for name, size in inside.items()
        if not any(matches(pattern, name.rpartition(".")[0]) for pattern in split)
    }
    if sum(whole.values()) <= (1 - _LEAST_SPLIT) * sum(inside.values()):
        return ""
    return max(whole, key=lambda name: whole[name])


LocalSizes = dict[tuple[str, int], tuple[int, ...]]
"""(function, number of its call in this forward of the module) -> positions, among the integers in
the call's arguments, of numbers of heads or features of all ranks."""


def local_sizes_of(path: str, rules: tuple[Rule, ...]) -> LocalSizes:
    """The calls of a module with sizes to divide by tp, from its `local_sizes` rules.

    >>> local_sizes_of("layers.3.attn", (("layers.*.attn", "local_sizes view 0 2"),))
    {('view', 0): (2,)}
    """
    found: LocalSizes = {}
    for pattern, kind in rules:
        if kind.startswith("local_sizes ") and matches(pattern, path):
            _, function, number, positions = kind.split(" ")
            found[function, int(number)] = tuple(int(n) for n in positions.split(","))
    return found


def local_sizes_kinds(sizes: LocalSizes) -> list[str]:
    """The inverse of local_sizes_of: the kinds of these calls."""
    return [
        f"local_sizes {function} {number} {','.join(map(str, positions))}"
        for (function, number), positions in sorted(sizes.items())
    ]


def matches(pattern: str, path: str) -> bool:
    """Whether a dotted path matches a pattern, in which `*` matches one part."""
    wanted, parts = pattern.split("."), path.split(".")
    same = len(wanted) == len(parts)
    return same and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def is_transposed(module: Any) -> bool:
    """Whether a layer's weight is [in, out]: transformers' Conv1D, of GPT-2."""
    return type(module).__name__ == "Conv1D"
