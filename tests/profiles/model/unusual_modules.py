"""Language models in plain torch that differ in one thing each; factories of them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, TOKENS, LAYERS = 1000, 128, 96, 4


def with_tokens(model):
    tokens = torch.randint(0, VOCABULARY, (2, TOKENS))
    return model, (tokens,), tokens, token_loss


def token_loss(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class Attention(nn.Module):
    """`repeated`: keys are repeated for the call; `written`: scores are computed by matmuls;
    `gates`: of the output, per head."""

    def __init__(
        self, heads=4, kv_heads=4, fused=False, bias=False, normed=False, repeated=False,
        written=False, window=0, cap=0, gates=0,
    ):  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, WIDTH // heads
        self.fused, self.repeated, self.written = fused, repeated, written
        self.window, self.cap, self.normed = window, cap, normed
        widths = [heads * self.size, kv_heads * self.size, kv_heads * self.size]
        self.widths = widths
        if fused:
            self.qkv = nn.Linear(WIDTH, sum(widths), bias=bias)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, n, bias=bias) for n in widths)
        self.out = nn.Linear(heads * self.size, WIDTH, bias=bias)
        self.gate = nn.Linear(WIDTH, heads * gates, bias=bias) if gates else None
        if normed:
            self.q_norm, self.k_norm = nn.RMSNorm(self.size), nn.RMSNorm(self.size)

    def forward(self, x):
        batch, tokens, _ = x.shape
        parts = (
            self.qkv(x).split(self.widths, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        )
        q, k, v = (y.view(batch, tokens, -1, self.size).transpose(1, 2) for y in parts)
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.repeated:
            times = self.heads // self.kv_heads
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        place = torch.arange(tokens, device=x.device)
        seen = place[:, None] >= place
        if self.window:
            seen = seen & (place[:, None] - place < self.window)
        if self.written:
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
            scores = torch.tanh(scores / self.cap) * self.cap if self.cap else scores
            y = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
        elif self.window:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            grouped = k.shape[1] != q.shape[1]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        y = y.transpose(1, 2)
        if self.gate:
            y = y * self.gate(x).sigmoid().unflatten(-1, (self.heads, -1))
        return self.out(y.reshape(batch, tokens, -1))


class LatentAttention(nn.Module):
    """Low-rank queries, keys and values; `apart`: a matrix each for keys, values, rotary keys."""

    def __init__(self, apart=False, heads=8, rank=64, nope=32, rope=16, value=32):
        super().__init__()
        self.heads, self.sizes, self.rank, self.apart = heads, (nope, rope, value), rank, apart
        self.q_down, self.q_up = nn.Linear(WIDTH, 96), nn.Linear(96, heads * (nope + rope))
        if apart:
            self.rotary, self.down = nn.Linear(WIDTH, rope), nn.Linear(WIDTH, rank)
            self.keys, self.values = nn.Linear(rank, heads * nope), nn.Linear(rank, heads * value)
        else:
            self.down = nn.Linear(WIDTH, rank + rope)
            self.up = nn.Linear(rank, heads * (nope + value))
        self.out = nn.Linear(heads * value, WIDTH)

    def forward(self, x):
        nope, rope, value = self.sizes
        q = self.q_up(self.q_down(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.apart:
            low, rotary = self.down(x), self.rotary(x)
            k, v = (f(low).unflatten(-1, (self.heads, -1)) for f in (self.keys, self.values))
        else:
            low, rotary = self.down(x).split([self.rank, rope], -1)
            k, v = self.up(low).unflatten(-1, (self.heads, -1)).split([nope, value], -1)
        k = torch.cat((k, rotary[:, :, None].expand(-1, -1, self.heads, -1)), -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, inner=4 * WIDTH, gated=False, bias=False):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner, bias=bias), nn.Linear(inner, WIDTH, bias=bias)
        self.gate = nn.Linear(WIDTH, inner, bias=bias) if gated else None

    def forward(self, x):
        return self.down(self.up(x) * F.silu(self.gate(x)) if self.gate else F.gelu(self.up(x)))


class LoopedExperts(nn.Module):
    """A Python loop over experts; `every`: each token goes through all of them."""

    def __init__(self, experts=4, top_k=2, inner=256, shared=0, every=False):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(inner, gated=True) for _ in range(experts))
        self.shared = FeedForward(shared, gated=True) if shared else None
        self.top_k, self.every = top_k, every

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weights = self.router(x).softmax(-1)
        best, chosen = weights.topk(self.top_k, -1)
        y = torch.zeros_like(x) if self.shared is None else self.shared(x)
        for number, expert in enumerate(self.experts):
            if self.every:
                y = y + weights[:, number : number + 1] * expert(x)
                continue
            rows, places = torch.where(chosen == number)
            y = y.index_add(0, rows, expert(x[rows]) * best[rows, places][:, None])
        return y.view(shape)


class StackedExperts(nn.Module):
    """Weights of all experts in one parameter each, sliced in a loop."""

    def __init__(self, experts=4, inner=256):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, inner))
        self.down = nn.Parameter(torch.randn(experts, inner, WIDTH))

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        best, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number in range(len(self.up)):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            made = F.gelu(x[rows] @ self.up[number]) @ self.down[number]
            y = y.index_add(0, rows, made * best[rows][:, None])
        return y.view(shape)


class WideNorm(nn.Module):
    """An RMS norm in several ops, in fp32."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.scale


class Block(nn.Module):
    def __init__(self, attention=None, feed_forward=None, order="pre", norm=nn.LayerNorm):
        super().__init__()
        self.attention = attention or Attention()
        self.feed_forward = feed_forward or FeedForward()
        self.order = order
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(4 if order == "sandwich" else 2))

    def forward(self, x):
        first, second = self.norms[0], self.norms[1]
        if self.order == "parallel":
            return x + self.feed_forward(second(x)) + self.attention(first(x))
        if self.order == "post":
            x = first(x + self.attention(x))
            return second(x + self.feed_forward(x))
        if self.order == "sandwich":
            x = x + self.norms[2](self.attention(first(x)))
            return x + self.norms[3](self.feed_forward(second(x)))
        x = x + self.attention(first(x))
        return x + self.feed_forward(second(x))


class TwoInOne(nn.Module):
    """Two layers as one module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))


class Checkpointed(nn.Module):
    """A layer that is computed again in the backward."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class FusedParallel(nn.Module):
    """Attention and feed-forward side by side in two matrices (as ViT-22B's)."""

    def __init__(self, inner=384):
        super().__init__()
        self.norm, self.widths = nn.LayerNorm(WIDTH), [WIDTH, WIDTH, WIDTH, inner, inner]
        self.into = nn.Linear(WIDTH, sum(self.widths), bias=False)
        self.out = nn.Linear(WIDTH + inner, WIDTH, bias=False)

    def forward(self, x):
        *parts, gate, up = self.into(self.norm(x)).split(self.widths, -1)
        q, k, v = (y.view(*y.shape[:2], 4, WIDTH // 4).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.out(torch.cat((y, F.silu(gate) * up), -1))


class Model(nn.Module):
    def __init__(self, block=Block, tied=False, positions=0, skip=False):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(1, positions, WIDTH)) if positions else None
        self.blocks = nn.ModuleList(
            block(i) if block is not Block else Block() for i in range(LAYERS)
        )
        self.norm, self.skip = nn.LayerNorm(WIDTH), skip
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions[:, : tokens.shape[1]]
        first = x
        for block in self.blocks:
            x = block(x) + first if self.skip else block(x)
        return self.head(self.norm(x))


class Pairs(nn.Module):
    """Attention and feed-forward as members of a list in a list."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(
            nn.ModuleList([Attention(), FeedForward()]) for _ in range(LAYERS)
        )

    def forward(self, tokens):
        x = self.tokens(tokens)
        for attention, feed_forward in self.layers:
            x = x + attention(x)
            x = x + feed_forward(x)
        return self.head(x)


class OfTorch(nn.Module):
    """torch's own layers."""

    def __init__(self, causal):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.causal = causal

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], device=tokens.device, dtype=self.head.weight.dtype
        )
        mask = mask if self.causal else None
        return self.head(self.layers(self.tokens(tokens), mask=mask, is_causal=self.causal))


def made(**changes):
    return lambda: with_tokens(Model(**changes))


gated = {"gated": True, "inner": 384}
gpt = made(
    block=lambda _: Block(Attention(fused=True, bias=True), FeedForward(bias=True)),
    tied=True,
    positions=TOKENS,
)
gated_heads = made(block=lambda _: Block(Attention(kv_heads=2, gates=1), FeedForward(**gated)))
gated_attention = made(
    block=lambda _: Block(Attention(kv_heads=2, gates=WIDTH // 4), FeedForward(**gated))
)
separate = made(block=lambda _: Block(Attention(kv_heads=2), FeedForward(**gated)))
fused = made(block=lambda _: Block(Attention(kv_heads=2, fused=True), FeedForward(**gated)))
repeated = made(block=lambda _: Block(Attention(kv_heads=2, repeated=True), FeedForward(**gated)))
written = made(block=lambda _: Block(Attention(written=True), FeedForward(**gated)))
capped = made(
    block=lambda i: Block(Attention(written=True, cap=50, window=i % 2 * 16), FeedForward(**gated))
)
windows = made(block=lambda i: Block(Attention(window=i % 2 * 16), FeedForward(**gated)))
parallel = made(block=lambda _: Block(order="parallel"))
fused_parallel = made(block=lambda _: FusedParallel())
post_norm = made(block=lambda _: Block(order="post"))
sandwich = made(block=lambda _: Block(Attention(normed=True), order="sandwich", norm=nn.RMSNorm))
wide_sandwich = made(block=lambda _: Block(order="sandwich", norm=WideNorm))
experts_in_a_loop = made(block=lambda _: Block(feed_forward=LoopedExperts(8, shared=512)))
experts_in_a_stack = made(block=lambda _: Block(feed_forward=StackedExperts()))
every_expert = made(block=lambda _: Block(feed_forward=LoopedExperts(every=True)))
first_dense = made(
    block=lambda i: Block(feed_forward=LoopedExperts(8) if i else FeedForward(**gated))
)
every_second_layer = made(
    block=lambda i: Block(feed_forward=LoopedExperts(8) if i % 2 else FeedForward(**gated))
)
growing = made(block=lambda i: Block(feed_forward=FeedForward((i + 1) * WIDTH)))
skips = made(skip=True)


latent = made(block=lambda _: Block(LatentAttention()))
latent_apart = made(block=lambda _: Block(LatentAttention(apart=True)))
two_in_one = made(block=lambda _: TwoInOne())
checkpointed = made(block=lambda _: Checkpointed())


def last_token():
    """Logits of the last position alone, as for generation."""
    model, inputs, *_ = made()()
    model.norm.register_forward_hook(lambda module, given, x: x[:, -1:])
    return model, inputs


def pairs():
    return with_tokens(Pairs())


def torchs_own():
    return with_tokens(OfTorch(causal=True))


def encoder():
    return with_tokens(OfTorch(causal=False))


def frozen():
    model, *rest = made()()
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    model.blocks[0].attention.out.weight.requires_grad_(True)
    return model, *rest


def convolutions():
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3))
    return model, (torch.randn(2, 3, 32, 32),)
