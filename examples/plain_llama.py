"""A Llama in plain torch: nothing of transformers, nothing that Shardwright knows by name.

    shardwright plan examples.plain_llama:llama_8b --on 4x8xh100-sxm --global-batch 256 \\
      --stack megatron-core

A factory returns the module, its inputs, targets and a loss. It is called on torch's meta device
where only shapes are wanted, so the 8B one needs no memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Root mean square norm with a learned scale."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]"""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.scale


def rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary positions: [batch, heads, tokens, size] turned by position and pair of channels."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * speed
    sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    """Causal attention with fewer heads of keys and values than of queries."""

    def __init__(self, width: int, heads: int, kv_heads: int, theta: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.theta = heads, kv_heads, width // heads, theta
        self.query = nn.Linear(width, heads * self.size, bias=False)
        self.key = nn.Linear(width, kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(heads * self.size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same"""
        batch, tokens, _ = x.shape
        q = self.query(x).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        k = self.key(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        v = self.value(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        q, k = rotated(q, self.theta), rotated(k, self.theta)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same"""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, inner: int, heads: int, kv_heads: int, theta: float) -> None:
        super().__init__()
        self.before_attention = RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads, theta)
        self.before_feed_forward = RMSNorm(width)
        self.feed_forward = FeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same"""
        x = x + self.attention(self.before_attention(x))
        return x + self.feed_forward(self.before_feed_forward(x))


class Llama(nn.Module):
    """Embedding, layers, norm and logits."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        inner: int,
        heads: int,
        kv_heads: int,
        vocabulary: int,
        theta: float = 500_000.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, inner, heads, kv_heads, theta) for _ in range(layers)
        )
        self.norm = RMSNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, tokens] of whole numbers -> logits [batch, tokens, vocabulary]"""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of every token after the first."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _with_tokens(model: Llama, vocabulary: int, length: int) -> tuple:
    tokens = torch.randint(0, vocabulary, (2, length))
    return model, tokens, tokens, next_token


def small() -> tuple:
    """2.8 million weights, 128 tokens per sample: trains on a laptop."""
    model = Llama(layers=4, width=192, inner=512, heads=6, kv_heads=2, vocabulary=2048)
    return _with_tokens(model, 2048, 128)


def llama_8b() -> tuple:
    """The figures of Llama 3.1 8B, 8192 tokens per sample."""
    model = Llama(layers=32, width=4096, inner=14336, heads=32, kv_heads=8, vocabulary=128256)
    return _with_tokens(model, 128256, 8192)
