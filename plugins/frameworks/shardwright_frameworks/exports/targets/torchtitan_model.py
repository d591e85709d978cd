"""`model_file`: the module with the model's figures for torchtitan 0.2."""

from __future__ import annotations

import json

from profiles.errors import InputError
from shardwright_frameworks.exports.values.model_settings import norm_epsilon, rope_theta
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_TEXT = '''"""The planned model for torchtitan 0.2, named `planned`: Llama with the plan's figures,
fed with random tokens. For your data replace build_dataloader_fn and build_tokenizer_fn by
torchtitan.hf_datasets.text_datasets.build_text_dataloader and
torchtitan.components.tokenizer.build_hf_tokenizer."""

from dataclasses import replace

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec
from torchtitan.protocols.train_spec import register_train_spec

# The width of the feed-forward is rounded up to a multiple of multiple_of: here it is just that.
FIGURES = TransformerModelArgs(**{figures})


class RandomTokens(BaseDataLoader):
    def __init__(self, *, dp_rank, job_config, **_):
        self.rows = job_config.training.local_batch_size
        self.length = job_config.training.seq_len
        self.dp_rank = dp_rank

    def __iter__(self):
        source = torch.Generator().manual_seed(self.dp_rank)
        while True:
            size = (self.rows, self.length + 1)
            tokens = torch.randint(FIGURES.vocab_size, size, generator=source)
            yield {{"input": tokens[:, :-1]}}, tokens[:, 1:]

    def state_dict(self):
        return {{}}

    def load_state_dict(self, state_dict):
        pass


register_train_spec(
    "planned",
    replace(
        get_train_spec(),
        model_args={{"planned": FIGURES}},
        build_dataloader_fn=RandomTokens,
        build_tokenizer_fn=None,
        build_validator_fn=None,
        state_dict_adapter=None,
    ),
)
'''


def model_file(planned: PlannedRun) -> str:
    """`planned_model.py`; raises InputError unless heads are equal shares of the hidden size."""
    model = planned.run.model
    if model.num_heads * model.head_size != model.hidden_size:
        raise InputError(
            f"--to torchtitan: {model.num_heads} heads of {model.head_size} are not the hidden "
            f"size of {model.hidden_size}, which its Llama shares out to the heads"
        )
    figures = {
        "dim": model.hidden_size,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_kv_heads,
        "vocab_size": model.vocab_size,
        "multiple_of": model.ffn_size,
        "ffn_dim_multiplier": _multiplier(model.ffn_size, model.hidden_size),
        "norm_eps": norm_epsilon(planned),
        "rope_theta": rope_theta(planned),
    }
    return _TEXT.format(figures=json.dumps(figures))


def _multiplier(ffn: int, hidden: int) -> float:
    """A factor that gives exactly the width `ffn`. torchtitan multiplies and rounds up to a
    multiple of it (models/llama3/model/model.py: int(factor x int(2/3 x 4 x hidden))), so the
    product may be any number between 0 and the width."""
    return round(0.5 * ffn / (8 * hidden / 3), 6)
