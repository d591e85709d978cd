"""`config_file`: the plan for torchtitan 0.3, as a Python function that returns a configuration.

Source: torchtitan 0.3.0 (PyPI, 2026): config/configs.py, config/manager.py, trainer.py and
models/llama3/__init__.py, whose layers get the model's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright_frameworks.exports.values.model_settings import norm_epsilon, rope_theta
from shardwright_frameworks.exports.values.planned_run import PlannedRun

CONFIG = "planned_config.py"
START = "--module planned_config --config planned"
_RECOMPUTE = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}
_CONVERTERS = {
    "quantize.linear.float8": "Float8LinearConverter.Config({compiled}, filter_fqns=['lm_head'])",
    "quantize.linear.mx": "MXFP8LinearConverter.Config({compiled})",
}
_TEXT = '''"""The plan for torchtitan 0.3 ({start}): Llama with the plan's figures, fed
with random tokens. For your data give planned() torchtitan.hf_datasets.text_datasets'
HuggingFaceTextDataLoader.Config(dataset="c4") as dataloader, HuggingFaceTokenizer.Config() as
tokenizer, and hf_assets_path."""

from dataclasses import dataclass

import torch
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

DIM, HEADS, VOCABULARY = {dim}, {heads}, {vocab}


class RandomTokens(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **_):
        self.rows, self.length, self.dp_rank = local_batch_size, seq_len, dp_rank

    def __iter__(self):
        source = torch.Generator().manual_seed(self.dp_rank)
        positions = torch.arange(self.length).repeat(self.rows, 1)
        while True:
            tokens = torch.randint(VOCABULARY, (self.rows, self.length + 1), generator=source)
            yield {{"input": tokens[:, :-1], "positions": positions}}, tokens[:, 1:]

    def state_dict(self):
        return {{}}

    def load_state_dict(self, state_dict):
        pass


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    def encode(self, *_, **__):
        raise NotImplementedError("tokens are drawn at random: give planned() a tokenizer for text")

    decode = encode

    def get_vocab_size(self):
        return VOCABULARY


def model(converters):
    layers = llama3._build_llama3_layers(
        n_layers={layers},
        dim=DIM,
        n_heads=HEADS,
        n_kv_heads={kv_heads},
        hidden_dim={ffn},
        rope=ComplexRoPE.Config(
            dim=DIM // HEADS, max_seq_len={length}, theta={theta}, scaling="llama"
        ),
        attn_backend="flex",
    )
    for layer in layers:
        layer.attention_norm.eps = layer.ffn_norm.eps = {eps}
    made = llama3.Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=DIM, eps={eps}, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCABULARY, param_init=llama3._output_linear_init(DIM)
        ),
        layers=layers,
    )
    for converter in converters:
        made = converter.build().convert(made)
    return made


def planned() -> Trainer.Config:
    return Trainer.Config(
        model_spec=ModelSpec(
            name="llama3",
            flavor="planned",
            model=model([{converters}]),
            parallelize_fn=llama3.parallelize_llama,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=None,
            state_dict_adapter=llama3.Llama3StateDictAdapter,
        ),
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
        ),
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomTokens.Config(),
        optimizer=default_adamw(lr=3e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(),
        training={training},
        parallelism={parallelism},
        activation_checkpoint={recompute},
        compile=CompileConfig(enable={compiled}),
    )
'''


def config_file(planned: PlannedRun, tables: Mapping[str, Any]) -> str:
    """The text of `planned_config.py`, with the values of `tables`, the TOML of torchtitan 0.2."""
    model, compiled = planned.run.model, tables["compile"]["enable"]
    training = dict(tables["training"])
    parallelism = dict(tables["parallelism"])
    if planned.run.degrees.pp > 1:
        training["disable_cuda_graphs"] = True  # which it refuses with a pipeline
    if stages := parallelism.get("module_fqns_per_model_part"):
        renamed = {"output": "lm_head"}
        parallelism["module_fqns_per_model_part"] = [
            [renamed.get(name, name) for name in stage] for stage in stages
        ]
    words = [_CONVERTERS[name] for name in tables["model"]["converters"]]
    converters = ", ".join(
        one.format(compiled=f"model_compile_enabled={compiled}") for one in words
    )
    return _TEXT.format(
        start=START,
        dim=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        vocab=model.vocab_size,
        layers=model.num_layers,
        ffn=model.ffn_size,
        length=planned.run.seq_len,
        theta=rope_theta(planned),
        eps=norm_epsilon(planned),
        converters=converters,
        training=_call("TrainingConfig", training),
        parallelism=_call("ParallelismConfig", parallelism),
        recompute=_RECOMPUTE[tables["activation_checkpoint"]["mode"]],
        compiled=compiled,
    )


def _call(name: str, values: Mapping[str, object]) -> str:
    lines = "".join(f"            {key}={value!r},\n" for key, value in values.items())
    return f"{name}(\n{lines}        )"
