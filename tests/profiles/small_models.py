"""Small models for the tracer's tests: configurations, and modules that do unusual things."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 64,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 128,
        "n_positions": 64,
    },
    "bert": {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 128,
        "max_position_embeddings": 64,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 96,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "vocab_size": 128,
        "decoder_start_token_id": 0,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "image_size": 32,
        "patch_size": 8,
        "num_channels": 3,
        "num_labels": 10,
    },
    "whisper": {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": 128,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "num_mel_bins": 8,
        "max_source_positions": 20,
        "max_target_positions": 64,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "max_position_embeddings": 64,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 64,
        "sliding_window": None,
    },
}


class Odd(nn.Module):
    """A branch, a skip, a layer used twice, an LSTM, an embedding bag and a custom function."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.shared = nn.Linear(16, 16)
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.bag(words)
        y, _ = self.lstm(x.unsqueeze(1).expand(-1, 5, -1))
        y = self.shared(torch.tanh(self.shared(y[:, -1])))
        branch = self.left(y) if y.shape[0] > 1 else self.right(y)
        return self.head(Square.apply(branch + x))


class Square(torch.autograd.Function):
    """x squared, with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def odd() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Odd(), (torch.zeros(2, 7, dtype=torch.long),)


def not_a_tuple() -> nn.Module:
    return Odd()


def loss_before_targets() -> tuple[nn.Module, Tensor, object, Tensor]:
    words = torch.zeros(2, 7, dtype=torch.long)
    return Odd(), words, nn.functional.cross_entropy, words


def no_batch() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Odd(), (torch.tensor(1.0),)


class Turn(nn.Module):
    """A layer of one of two kinds, by its number."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if self.layer_id % 2 else torch.tanh(self.linear(x))


def by_turns() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(*(Turn(i) for i in range(5))), (torch.zeros(2, 8),)


class Pairs(nn.Module):
    """Scores of every sample with every other, as of a contrastive loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ self.second(x).T


def pairs() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Pairs(), (torch.zeros(2, 8),)


class Counted(nn.Linear):
    """Counts the calls of its kind."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.calls += 1
        return super().forward(x)


class Timed(nn.Module):
    """A step number in fp32, as of a diffusion model, goes into the layers."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layers = nn.ModuleList(Counted(16, 16) for _ in range(layers))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        step = torch.arange(8, device=x.device).float().cos()
        x = self.embed(x + step)
        for layer in self.layers:
            x = layer(x * step[:1])
        return self.head(x * step[:1])


def timed() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Timed(), (torch.zeros(2, 8),)


def timed_in_nine_layers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Timed(9), (torch.zeros(2, 8),)
