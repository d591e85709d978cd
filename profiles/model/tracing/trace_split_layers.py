"""The exchanges of a tensor-parallel rank around its layers, as hooks on the modules of a model.

Megatron-LM, arXiv 1909.08053, section 3: the ranks sum the outputs of layers split by row, and the
gradients of the inputs of layers split by column. With sequence parallelism (Korthikanti et al.,
arXiv 2205.05198, section 4.2.2) each rank has a share of the tokens between these layers: it
gathers the tokens before modules that need all of them, and a reduce-scatter returns its share. The
exchange itself is a parameter: the executor communicates, a trace records.

torch's ColwiseParallel, RowwiseParallel and SequenceParallel use DTensors, whose dispatch costs
more than 1 ms of host time per matmul: a split layer of Llama took 6 times the host time of an
unsplit one, and takes 1.2 to 1.3 times with these hooks (bench/split_layer_host.py). They do not
support layers that store their weight as [in, out] (GPT-2's Conv1D), or with one weight for query,
key and value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from profiles.errors import TraceError
from profiles.model.building.tensor_parallel_rules import GATHER, HEAD, JOIN, SPLIT, TABLE
from profiles.model.tracing.trace_tensor_parallel import Sharding

Change = Callable[[Tensor], Tensor]
_TOKENS = 1  # the dimension of the tokens: [batch, tokens, features]


class Exchange(Protocol):
    """The exchange of a tensor-parallel rank with the others."""

    def reduce(self, x: Tensor, operation: str) -> Tensor:
        """The `sum` or `max` over the ranks, in the memory of x."""

    def gather(self, out: Tensor, part: Tensor) -> None:
        """Fill `out` [rank, ...] with the parts of all ranks."""

    def scatter(self, out: Tensor, parts: Tensor) -> None:
        """Fill `out` with this rank's part of the sum over ranks of `parts` [rank, ...]."""


class NoExchange:
    """The exchange of a run on shapes, which does nothing."""

    def reduce(self, x: Tensor, operation: str) -> Tensor:
        """Unchanged."""
        return x

    def gather(self, out: Tensor, part: Tensor) -> None:
        """Do nothing."""

    def scatter(self, out: Tensor, parts: Tensor) -> None:
        """Do nothing."""


class _Exchanged(torch.autograd.Function):
    """Autograd function that applies `forth` to a tensor, and `back` to the gradient of its
    output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Change, back: Change) -> Tensor:
        ctx.back = back
        with torch._C.DisableTorchFunction():  # the calls are not the model's
            return forth(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.back(gradient), None, None


def _exchanged(x: Tensor, forth: Change, back: Change) -> Tensor:
    made: Tensor = _Exchanged.apply(x, forth, back)  # type: ignore[no-untyped-call] # torch's is
    return made


class SplitLayers:
    """The hooks on one rank's layers.

    Consecutive column-split layers that read the same tensor (queries, keys and values) share one
    whole input: autograd adds their gradients, and the ranks sum them once. The input is kept until
    the next row-split layer, because under recomputation no layer saves it.
    """

    def __init__(self, sharding: Sharding, exchange: Exchange, rank: int) -> None:
        self.sharding, self.exchange, self._rank = sharding, exchange, rank
        self._state: tuple[Tensor, int, bool] | None = None
        self._made: Tensor | None = None

    def hook(self, model: nn.Module) -> None:
        """Hook the linear layers, and the modules that take or make shares of the tokens."""
        for path, side in self.sharding.rules.items():
            module = model.get_submodule(path)
            if side == "column" and not self.sharding.tokens:
                module.register_forward_pre_hook(self._take)
            elif side == "row":
                module.register_forward_pre_hook(self._take_share)
                module.register_forward_hook(self._give_sum)
        for path, kind in self.sharding.tokens:
            self.share_tokens(model.get_submodule(path), kind)

    def hook_vocabulary(self, model: nn.Module, runs: Callable[[], bool]) -> None:
        """Let embeddings and head work on this rank's part of the vocabulary: a lookup of another
        rank's token returns zeros, and the ranks sum.

        runs  whether a call that begins is computed by this stage
        """
        outside: dict[nn.Module, Tensor] = {}
        rank = self._rank

        def look_up(table: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not runs():
                return None
            row = inputs[0] - rank * table.num_embeddings
            outside[table] = (row < 0) | (row >= table.num_embeddings)
            return (row.masked_fill(outside[table], 0), *inputs[1:])

        def sum_rows(table: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            if table not in outside:
                return output
            own = output.masked_fill(outside.pop(table).unsqueeze(-1), 0.0)
            return _exchanged(own, self._summed, _same)

        def take(head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            return (self._whole(inputs[0]), *inputs[1:]) if runs() else None

        for path, side in self.sharding.rules.items():
            module: Any = model.get_submodule(path)
            if side == TABLE:
                padding = self.sharding.padding[path]
                owner, row = (-1, 0) if padding is None else divmod(padding, module.num_embeddings)
                module.padding_idx = row if owner == rank else None
                module.register_forward_pre_hook(look_up)
                module.register_forward_hook(sum_rows)
            elif side == HEAD:
                module.register_forward_pre_hook(take)

    def share_tokens(self, module: nn.Module, kind: str) -> None:
        """Let a module gather or produce shares of the tokens; no effect on a module without
        weights, which another stage runs.

        kind  of rule in tensor_parallel_rules.py
        """
        if next(module.parameters(), None) is None:
            return
        what, argument = kind.split(" ")
        forward = module.forward
        before, behind = {
            SPLIT: ((self._own_tokens, self._all_tokens), None),
            GATHER: ((self._all_tokens, self._sum_of_own_tokens), None),
            JOIN: (None, (self._all_tokens, self._own_tokens)),
        }[what]

        def run(*args: Any, **kwargs: Any) -> Any:
            if before is not None and argument in kwargs:
                kwargs[argument] = _exchanged(kwargs[argument], *before)
            elif before is not None:
                at = int(argument)
                args = (*args[:at], _exchanged(args[at], *before), *args[at + 1 :])
            output = forward(*args, **kwargs)
            if behind is None:
                return output
            if isinstance(output, Tensor):
                return _exchanged(output, *behind)
            return (_exchanged(output[0], *behind), *output[1:])

        module.forward = run

    # --- linear layers ------------------------------------------------------------------------

    def _take(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hook before a layer split by column."""
        x: Tensor = inputs[0]
        state = (x, x._version, torch.is_grad_enabled())
        if self._state is None or self._state[0] is not x or self._state[1:] != state[1:]:
            self._state, self._made = state, self._whole(x)
        return (self._made, *inputs[1:])

    def _take_share(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Hook before a layer split by row."""
        self._state = self._made = None
        bias = module._parameters.get("bias")
        if bias is not None:
            # Only the first rank adds the bias, the others add 0; each gets its whole gradient. The
            # module finds this tensor before its parameter. The parameter stays in place, because a
            # recomputation may end inside the layer.
            vars(module)["bias"] = bias - bias.detach() * (self._rank > 0)

    def _give_sum(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Hook after a layer split by row."""
        vars(module).pop("bias", None)
        if self.sharding.tokens:
            return _exchanged(output, self._sum_of_own_tokens, self._all_tokens)
        return _exchanged(output, self._summed, _same)

    # --- exchanges ----------------------------------------------------------------------------

    def _whole(self, x: Tensor) -> Tensor:
        """A whole input, whose gradient is the sum of the ranks' gradients."""
        return _exchanged(x, lambda whole: whole.view_as(whole), self._summed)

    def _summed(self, part: Tensor) -> Tensor:
        """The sum over the ranks, in the memory of the part: an output of a linear layer or of a
        lookup, or the gradient of a linear layer's input. Autograd keeps none of them for later,
        unless it differentiates the gradient."""
        again = torch.is_grad_enabled()
        own = part.clone(memory_format=torch.contiguous_format) if again else part.detach()
        return self.exchange.reduce(own.contiguous(), "sum")

    def _own_tokens(self, whole: Tensor) -> Tensor:
        if whole.shape[_TOKENS] % self.sharding.tp:
            raise TraceError(f"tp={self.sharding.tp} does not divide {whole.shape[_TOKENS]} tokens")
        return token_shares(whole, self.sharding.tp)[self._rank].clone()

    def _all_tokens(self, own: Tensor) -> Tensor:
        parts = own.new_empty((self.sharding.tp, *own.shape))
        self.exchange.gather(parts, own.contiguous())
        return parts.view(own.shape[0], -1, *own.shape[_TOKENS + 1 :])

    def _sum_of_own_tokens(self, whole: Tensor) -> Tensor:
        parts = token_shares(whole.contiguous(), self.sharding.tp)
        own = torch.empty_like(parts[0])
        self.exchange.scatter(own, parts)
        return own


def token_shares(whole: Tensor, ranks: int) -> Tensor:
    """The tokens [batch, tokens, ...] as [rank, batch, tokens / ranks, ...]. A share is one piece
    of the memory of the whole, of any samples: so exchanges need no copies."""
    batch, tokens = whole.shape[0], whole.shape[_TOKENS]
    return whole.reshape(ranks, batch, tokens // ranks, *whole.shape[_TOKENS + 1 :])


def _same(gradient: Tensor) -> Tensor:
    return gradient
