"""Models of transformers, with weights that nobody trained, as factories."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from tests.measuring.modules.made import Made


def bert() -> Made:
    config = AutoConfig.for_model(
        "bert",
        vocab_size=4000,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
    )
    words = torch.arange(4 * 64).reshape(4, 64) * 7 % 4000
    return AutoModelForMaskedLM.from_config(config), {"input_ids": words}, words, _words_loss


def t5() -> Made:
    config = AutoConfig.for_model(
        "t5",
        vocab_size=3000,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=3,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    words = torch.arange(4 * 48).reshape(4, 48) * 5 % 3000
    inputs = {"input_ids": words, "decoder_input_ids": words.roll(1, 1)}
    return AutoModelForSeq2SeqLM.from_config(config), inputs, words, _words_loss


def _words_loss(output: Any, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output["logits"].transpose(1, 2).float(), words)
