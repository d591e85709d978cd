"""Models in plain torch, as users write them: no rule file knows their names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, WORDS, LENGTH, LAYERS = 32, 4, 64, 24, 3


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotary(length: int, width: int) -> Tensor:
    rates = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(length).float(), rates)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


class GroupedAttention(nn.Module):
    """Llama's, as its authors wrote it: sizes from attributes, keys repeated, complex rotations."""

    def __init__(self, width: int, heads: int, kv_heads: int, norm: bool = False) -> None:
        super().__init__()
        self.n_heads, self.n_kv, self.head = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, heads * self.head, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head, bias=False)
        self.wo = nn.Linear(heads * self.head, width, bias=False)
        self.q_norm = RMSNorm(self.head) if norm else nn.Identity()

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(self.wq(x).view(batch, length, self.n_heads, self.head))
        k = self.wk(x).view(batch, length, self.n_kv, self.head)
        v = self.wv(x).view(batch, length, self.n_kv, self.head)
        q, k = rotated(q, turns), rotated(k, turns)
        count = self.n_heads // self.n_kv
        k = k[:, :, :, None].expand(batch, length, self.n_kv, count, self.head)
        v = v[:, :, :, None].expand(batch, length, self.n_kv, count, self.head)
        k = k.reshape(batch, length, self.n_heads, self.head)
        v = v.reshape(batch, length, self.n_heads, self.head)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, mlp: nn.Module, kv_heads: int = 2, norm: bool = False) -> None:
        super().__init__()
        self.attention = GroupedAttention(WIDTH, HEADS, kv_heads, norm)
        self.first, self.second, self.mlp = RMSNorm(WIDTH), RMSNorm(WIDTH), mlp

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), turns)
        return x + self.mlp(self.second(x))


class FusedAttention(nn.Module):
    """nanoGPT's: one weight for queries, keys and values, split by a size that is an attribute."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.width, self.drop = heads, width, nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(LENGTH, LENGTH))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (
            y.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for y in parts
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width)))


class GptBlock(nn.Module):
    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.attn, self.parallel = FusedAttention(WIDTH, HEADS), parallel
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            h = self.ln_1(x)
            return x + self.attn(h) + self.down(F.gelu(self.up(h)))
        x = x + self.attn(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Experts(nn.Module):
    """A loop over all experts, or over those that got rows."""

    def __init__(self, count: int = 4, chosen: int = 2, *, skips: bool = False) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(WIDTH, count, bias=False), chosen
        self.skips = skips
        self.experts = nn.ModuleList(Gated(WIDTH, 2 * WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(F.softmax(self.gate(rows), dim=-1), self.chosen)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            if self.skips and not len(row):
                continue
            out.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return out.view_as(x)


class OneMatrix(nn.Module):
    """A parallel block with one weight before attention and MLP and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), WIDTH // HEADS
        self.inside = nn.Linear(WIDTH, 3 * WIDTH + 4 * WIDTH)
        self.outside = nn.Linear(WIDTH + 4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, up = self.inside(self.norm(x)).split([WIDTH] * 3 + [4 * WIDTH], -1)
        q, k, v = (y.unflatten(-1, (HEADS, self.head)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.outside(torch.cat([y, F.gelu(up)], -1))


class Excited(nn.Module):
    """Squeeze and excite: its inner features meet all channels by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))[:, :, None, None]


class Language(nn.Module):
    def __init__(self, blocks: list[nn.Module], *, turns: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(blocks)
        self.places = None if turns else nn.Embedding(LENGTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        if turns:
            self.register_buffer("turns", rotary(2 * LENGTH, WIDTH // HEADS), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x) if self.places is not None else layer(x, self.turns[: tokens.shape[1]])
        return self.head(self.norm(x))


def _language(model: nn.Module) -> Any:
    tokens = torch.randint(0, WORDS, (2, LENGTH))
    return model, (tokens,), tokens.roll(-1, 1), _loss


def _of(block: Callable[[], nn.Module], **more: bool) -> Callable[[], Any]:
    """A factory of a language model of such blocks."""
    return lambda: _language(Language([block() for _ in range(LAYERS)], **more))


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def many_experts() -> Any:
    """More experts than rows in a short run."""
    return _language(Language([LlamaBlock(Experts(48, 1, skips=True))], turns=True))


def experts_in_sequence() -> Any:
    """Each is a sequence, whose square layers differ only in their numbers."""
    experts = Experts(48, 1, skips=True)
    for number in range(48):
        inner = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        experts.experts[number] = nn.Sequential(*inner)
    return _language(Language([LlamaBlock(experts)], turns=True))


def weight_normed() -> Any:
    def layer(wide: int, narrow: int) -> nn.Module:
        return nn.utils.parametrizations.weight_norm(nn.Linear(wide, narrow))

    blocks = [nn.Sequential(layer(8, 32), nn.ReLU(), layer(32, 8)) for _ in range(3)]
    return nn.Sequential(*blocks), (torch.zeros(4, 8),)


def convolutions() -> Any:
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers), (torch.randn(2, 8, 16, 16),)


def excited() -> Any:
    return nn.Sequential(Excited(), Excited(), Excited()), (torch.randn(2, 8, 16, 16),)


class Asked(nn.Module):
    """Attention by einsum, with a dropout that is a number in the code, and a norm over all heads
    before the projection, which no rank can take alone."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.inner = nn.LayerNorm(WIDTH) if normed else nn.Identity()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64)
        self.down = nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (
            part(h).reshape(*x.shape[:2], HEADS, -1) for part in (self.query, self.key, self.value)
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
        scores = F.dropout(scores.softmax(-1), 0.1, self.training)
        y = torch.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape)
        x = x + self.out(self.inner(y))
        return x + self.down(F.relu(self.up(x)).square())


class Biased(nn.Module):
    """Attention whose scores get a bias of every head, which no rank has a share of."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = qkv[0] @ qkv[1].transpose(-1, -2) + self.bias[:, :length, :length]
        y = scores.softmax(-1) @ qkv[2]
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


def in_place_and_shared() -> Any:
    """Activations change what the split layers before them gave; the first layers' weights are the
    last's too, each in a module of its own."""
    width = 4 * WIDTH
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(inplace=True), nn.Linear(width, WIDTH))
        for _ in range(LAYERS)
    ]
    blocks[-1][0].weight, blocks[-1][2].weight = blocks[0][0].weight, blocks[0][2].weight
    return _language(Language(list(blocks)))


def perceptron() -> Any:
    """No list of blocks."""
    layers = [nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)]
    return nn.Sequential(*layers), (torch.randn(4, 16),)


class Checked(FusedAttention):
    """Its code insists on the whole width."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).chunk(3, -1)
        assert q.shape[-1] == self.width, "the width is another"
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


def checked() -> Any:
    blocks: list[nn.Module] = [GptBlock() for _ in range(LAYERS)]
    for block in blocks:
        block.attn = Checked(WIDTH, HEADS)
    return _language(Language(blocks))


class OfOneLength(nn.Module):
    """Its code takes sequences of one length, longer than what blocks are tried on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[1] == 300, "the length is another")
        y: Tensor = self.down(F.gelu(self.up(x)))
        return x + y


def of_one_length() -> Any:
    return nn.Sequential(*(OfOneLength() for _ in range(LAYERS))), (torch.randn(4, 300, WIDTH),)


class Softmax(torch.autograd.Function):
    """Of scores where they are seen."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, seen: Tensor) -> Tensor:
        ctx.seen = seen.bool()
        made = scores.masked_fill(~ctx.seen, torch.finfo(scores.dtype).min).softmax(-1)
        made = made.masked_fill(~ctx.seen, 0)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (made,) = ctx.saved_tensors
        given = gradients[0] * made
        return given - made * given.sum(-1, keepdim=True), None


class Masked(nn.Module):
    """One head, and a mask of whole numbers, each of which says that a key is seen, which a
    function of the model's own takes (SEW-D)."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, seen: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).transpose(-1, -2)
            shares: Any = Softmax.apply(scores, seen[:, None])  # type: ignore[no-untyped-call] # torch's
            made: Tensor = self.out(shares @ self.value(x))
            return x + made

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(LAYERS))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, seen)
        return x


def masked() -> Any:
    return Masked(), (torch.randn(4, 8, WIDTH), torch.ones(4, 8, dtype=torch.long))


llama = _of(lambda: LlamaBlock(Gated(WIDTH, 3 * WIDTH)), turns=True)
# Queries are normalised in each head, by one weight for all of them.
llama_with_norms = _of(lambda: LlamaBlock(Gated(WIDTH, 64), norm=True), turns=True)
# One head of keys and values: its attention cannot be split.
llama_with_one_key = _of(lambda: LlamaBlock(Gated(WIDTH, 64), kv_heads=1), turns=True)
mixture = _of(lambda: LlamaBlock(Experts()), turns=True)
gpt = _of(GptBlock, tied=True)
parallel_gpt = _of(lambda: GptBlock(parallel=True))
one_matrix = _of(OneMatrix)
# Attention in one function, which no rule of ours reaches into.
torch_encoder = _of(
    lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=True)
)
asked = _of(lambda: Asked(False))
asked_with_norm = _of(lambda: Asked(True))
biased = _of(Biased)
