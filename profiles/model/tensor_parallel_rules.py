"""Which layers of a model tensor parallelism splits, and how, as rules on module paths.

The rules are those that transformers ships with a model (`base_model_tp_plan`), or else ours
(profiles/data/tensor_parallel/rules.toml). Embedding, head and expert tensors stay whole on every
rank. Modules are asked by name, so that this file needs no torch.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from typing import Any

from profiles.errors import DocumentError

Rule = tuple[str, str]
"""(pattern, kind): a dotted path in which `*` stands for one part; of a module, or of an attribute
for `divide`."""

KINDS = ("column", "row", "fused_column_3", "divide")
"""Those of our file of rules. Derived rules (trace_derive_tensor_parallel.py) also have
`fused_column_4:1:1` and `fused_row_1:4` (parts in these proportions side by side in a weight, each
split by itself), `sum_gradient` (a whole parameter whose gradients are summed over the ranks) and
`local_sizes` (see local_sizes_of)."""

_SCHEMA = "shardwright/tensor-parallel-rules@1"


class UnevenSizeError(ValueError):
    """A number of heads or features that the ranks cannot share evenly."""


def rules_of(module: Any, config: Any) -> tuple[Rule, ...]:
    """The rules that suit a transformers model, () where none are known or a name is not there."""
    prefix = getattr(module, "base_model_prefix", "")
    plan = getattr(config, "base_model_tp_plan", None) or {}
    styles = {"colwise": "column", "rowwise": "row"}
    rules = [(pattern, styles[style]) for pattern, style in plan.items() if style in styles]
    rules = [
        (_below(prefix, pattern), kind)
        for pattern, kind in rules
        if _split_by(module, _below(prefix, pattern)) == {"Linear"}
    ]
    if {kind for _, kind in rules} == {"column", "row"}:
        return tuple(rules)
    own = _table().get(str(getattr(config, "model_type", "")), {})
    rules = [(_below(prefix, pattern), kind) for kind in KINDS for pattern in own.get(kind, ())]
    known = all(
        _split_by(module, pattern) in ({"Linear"}, {"Conv1D"})
        for pattern, kind in rules
        if kind != "divide"
    )
    return tuple(rules) if known else ()


def split_of(kind: str) -> tuple[str, tuple[int, ...]]:
    """`column`, `row` or "" and the proportions of the parts that lie side by side in the weight.

    >>> split_of("fused_column_3"), split_of("fused_row_1:4"), split_of("divide")
    (('column', (1, 1, 1)), ('row', (1, 4)), ('', ()))
    """
    if kind in ("column", "row"):
        return kind, (1,)
    if not kind.startswith("fused_"):
        return "", ()
    _, side, parts = kind.split("_")
    sizes = tuple(int(n) for n in parts.split(":"))
    return side, (1,) * sizes[0] if len(sizes) == 1 else sizes


def fused(side: str, parts: tuple[int, ...]) -> str:
    """The kind of a layer that is split by `column` or `row`, in these parts; see split_of."""
    if len(parts) == 1:
        return side
    same = set(parts) == {1}
    return f"fused_{side}_{len(parts) if same else ':'.join(map(str, parts))}"


LocalSizes = dict[tuple[str, int], tuple[int, ...]]
"""(function, how many calls of it the module made before in this forward) -> positions, among the
whole numbers in the call's arguments, of those that count heads or features of all ranks."""


def local_sizes_of(path: str, rules: tuple[Rule, ...]) -> LocalSizes:
    """The calls of a module whose sizes are to be divided by tp, from its `local_sizes` rules.

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
    """The kinds that local_sizes_of reads."""
    return [
        f"local_sizes {function} {number} {','.join(map(str, positions))}"
        for (function, number), positions in sorted(sizes.items())
    ]


def matches(pattern: str, path: str) -> bool:
    """Whether a dotted path matches a pattern whose `*` stands for one part."""
    wanted, parts = pattern.split("."), path.split(".")
    same = len(wanted) == len(parts)
    return same and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def is_transposed(module: Any) -> bool:
    """Whether a layer keeps its weight as [in, out]: transformers' Conv1D, of GPT-2."""
    return type(module).__name__ == "Conv1D"


def divide_attributes(module: Any, rules: tuple[Rule, ...], tp: int) -> None:
    """Gives a model whose layers are split the counts of one rank; raises ValueError if uneven."""
    for pattern, kind in rules:
        if kind != "divide":
            continue
        parent, _, attribute = pattern.rpartition(".")
        for path, child in module.named_modules():
            if not matches(parent, path):
                continue
            value = getattr(child, attribute)
            if value % tp:
                raise UnevenSizeError(
                    f"tp={tp} does not divide {path}.{attribute}, which is {value}"
                )
            setattr(child, attribute, value // tp)


@functools.cache
def _table() -> dict[str, dict[str, list[str]]]:
    path = importlib.resources.files("profiles") / "data" / "tensor_parallel" / "rules.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if data.pop("schema", None) != _SCHEMA:
        raise DocumentError(f"{path} is not a {_SCHEMA} file")
    for model_type, kinds in data.items():
        for kind in kinds:
            if kind not in KINDS:
                raise DocumentError(f"{path}: {model_type}.{kind} is none of {', '.join(KINDS)}")
    return data


def _below(prefix: str, pattern: str) -> str:
    return f"{prefix}.{pattern}" if prefix else pattern


def _split_by(module: Any, pattern: str) -> set[str]:
    """The kinds of layers that a pattern names; subclasses of nn.Linear count as it."""
    found = set()
    for path, child in module.named_modules():
        if matches(pattern, path):
            names = [cls.__name__ for cls in type(child).__mro__]
            found.add("Linear" if "Linear" in names else names[0])
    return found
