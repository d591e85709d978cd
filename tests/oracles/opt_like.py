"""Models like MPT, traced."""

from __future__ import annotations

import json
from pathlib import Path

from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from shardwright.runs.run import PublishedRun


def traced_like(run: PublishedRun, folder: Path) -> TracedModel:
    """An OPT without biases of the run's figures, traced; its configuration goes into `folder`.

    MPT has the same products and attention, and slopes on the scores in place of positions.
    """
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": run.hidden_size,
        "word_embed_proj_dim": run.hidden_size,
        "num_hidden_layers": run.num_layers,
        "num_attention_heads": run.num_heads,
        "ffn_dim": run.ffn_size,
        "vocab_size": run.vocab_size,
        "max_position_embeddings": run.seq_len,
        "activation_function": "gelu",
        "enable_bias": False,
    }
    path = folder / f"{run.id}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    length = run.seq_len or 1
    return trace_model(resolve_model(str(path)), sequence_length=length, dtype="bfloat16")
