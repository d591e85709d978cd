"""Find the embedding and the head of a model whose vocabulary tensor parallelism may split.

Each rank then has only its rows of both and its logits: the loss exchanges three numbers per token
(build_split_loss.py lists the supported losses). The head is a linear layer whose output becomes
the logits by elementwise ops (a scale, a soft cap). Tables are embeddings with the same number of
rows that are called with integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from profiles.model.building.build import BuiltModel
from profiles.model.building.build_split_loss import with_split_loss
from profiles.model.building.tensor_parallel_rules import HEAD, TABLE, Rule
from profiles.model.tracing.trace_random_block import block_calls, linear_layers

# Autograd nodes (torch 2.13) of ops on each number alone.
_ELEMENTWISE = {
    "CloneBackward0",
    "DivBackward0",
    "MulBackward0",
    "TanhBackward0",
    "ToCopyBackward0",
}


@dataclass(slots=True)
class VocabularyWatch:
    """The calls of a model's linear layers, embeddings and loss in passes of `noting`."""

    built: BuiltModel
    _heads: dict[str, list[Tensor]] = field(default_factory=dict)  # of the last pass
    _tables: dict[str, bool] = field(default_factory=dict)
    _logits: Any = None
    _takes_share: bool = False

    @classmethod
    @contextmanager
    def of(cls, built: BuiltModel) -> Iterator[VocabularyWatch]:
        """A watch for the passes inside the context."""
        watch = cls(built)
        linear = linear_layers(built.module)
        hooks = [built.module.register_forward_pre_hook(lambda *_: watch._heads.clear())]
        for path, module in built.module.named_modules():
            if path in linear and isinstance(module, nn.Linear):
                hooks.append(module.register_forward_hook(partial(watch._multiplied, path)))
            elif isinstance(module, nn.Embedding):
                hooks.append(module.register_forward_hook(partial(watch._looked_up, path)))
        try:
            yield watch
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def noting(self) -> BuiltModel:
        """The model, with a loss that notes the logits."""
        return replace(self.built, loss_fn=self._loss)

    def _loss(self, output: Any, targets: Any) -> Tensor:
        self._logits, self._takes_share = output, False
        words = output.shape[-1] if isinstance(output, Tensor) and output.dim() > 1 else 0
        if words:
            split = with_split_loss(self.built, first=0, reduce=lambda x, _: x)
            with suppress(Exception):  # then the head stays whole
                # Also of whole logits, of which a loss may leave out some (padding).
                shares = [torch.empty_like(output[..., :n]) for n in (words, words // 2)]
                losses = [split.loss_fn(x.requires_grad_(), targets) for x in shares]
                self._takes_share = all(x.requires_grad for x in losses)
        return self.built.loss_fn(output, targets)

    def _multiplied(self, path: str, module: nn.Module, args: Any, output: Tensor) -> None:
        self._heads.setdefault(path, []).append(output)

    def _looked_up(self, path: str, module: Any, args: Any, output: Tensor) -> None:
        usual = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
        words = args[0] if args and isinstance(args[0], Tensor) else None
        rows = words is not None and output.shape == (*words.shape, module.embedding_dim)
        self._tables[path] = usual and rows and self._tables.get(path, True)

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the model's vocabulary, () if it must stay whole."""
        module = self.built.module
        heads = [path for path, made in self._heads.items() if _becomes(made[-1], self._logits)]
        # The model may compute with all logits of a token of an earlier call.
        once = len(heads) == 1 and len(self._heads[heads[0]]) == 1
        if not once or not self._takes_share:
            return ()
        head = module.get_submodule(heads[0])
        words = head.get_parameter("weight").shape[0]
        tables = [
            path
            for path, usual in self._tables.items()
            if usual and module.get_submodule(path).get_parameter("weight").shape[0] == words
        ]
        split = {id(module.get_submodule(path)) for path in (*tables, *heads)}
        weights = {module.get_submodule(path).get_parameter("weight") for path in (*tables, *heads)}
        for other in module.modules():
            # An embedding that is not called may hold them too (T5); other code may read all rows.
            reads = id(other) not in split and not isinstance(other, nn.Embedding)
            if reads and weights & set(other._parameters.values()):
                return ()
        return (*((path, TABLE) for path in tables), (heads[0], HEAD))


def vocabulary_rules(built: BuiltModel) -> tuple[Rule, ...]:
    """The rules of the vocabulary of a model on meta, () if it must stay whole.

    Raises TraceError if the model does not run on shapes.
    """
    with VocabularyWatch.of(built) as watch:
        block_calls(watch.noting)
    return watch.rules()


def _becomes(x: Tensor, logits: Any) -> bool:
    """Whether the logits were made from `x` by elementwise ops."""
    if not isinstance(logits, Tensor) or logits.shape != x.shape:
        return False
    node = logits.grad_fn
    while node is not None and node is not x.grad_fn:
        before = [one for one, _ in node.next_functions if one is not None]
        with_tensor = getattr(node, "_saved_other", None)
        if node.name() not in _ELEMENTWISE or len(before) != 1:
            return False
        if isinstance(with_tensor, Tensor) and with_tensor.dim():
            return False
        (node,) = before
    return node is not None
