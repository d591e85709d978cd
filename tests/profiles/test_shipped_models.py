"""Shipped models: their published numbers of parameters, and the figures of known_models.toml,
which were read from the same repositories by themselves."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from profiles.errors import ModelError
from profiles.model.figures.described_model import describe_model
from profiles.model.figures.figures_from_config import figures_of_config, hybrid_layers
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import _short_name, model_names, resolve_model
from shardwright.runs.known_models import known_model

# Billions of all and of active parameters as the source of each file gives them. Some sources count
# towers, embeddings or layers of prediction that others leave out.
PUBLISHED = {
    "deepseek-v3": (671, 37),
    "deepseek-v3.2": (671, 37),
    "gemma-3-12b": (11.77, 0),
    "gemma-3-27b": (27.0, 0),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
    "gpt-oss-20b": (20.91, 3.61),
    "gpt-oss-120b": (116.83, 5.13),
    "kimi-k2": (1040, 32.6),
    "llama-4-scout": (109, 17),
    "llama-4-maverick": (400, 17),
    "mistral-small-3": (23.6, 0),
    "nemotron-3-nano": (31.6, 3.6),
    "olmo-2-7b": (7.3, 0),
    "olmo-2-13b": (13.7, 0),
    "olmo-2-32b": (32.2, 0),
    "phi-4": (14.7, 0),
    "qwen3-0.6b": (0.6, 0),
    "qwen3-1.7b": (1.7, 0),
    "qwen3-4b": (4.0, 0),
    "qwen3-8b": (8.2, 0),
    "qwen3-14b": (14.8, 0),
    "qwen3-32b": (32.8, 0),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "qwen3.5-27b": (27, 0),
    "qwen3.5-35b-a3b": (35, 0),
    "qwen3.5-397b-a17b": (397, 17),
    "llama-2-7b": (6.74, 0),
    "llama-2-13b": (13.02, 0),
    "llama-2-70b": (68.98, 0),
    "llama-3-8b": (8.03, 0),
    "llama-3-70b": (70.55, 0),
    "llama-3.2-1b": (1.24, 0),
    "llama-3.2-3b": (3.21, 0),
    "tinyllama-1.1b": (1.1, 0),
    "smollm2-135m": (0.135, 0),
    "smollm2-360m": (0.362, 0),
    "smollm2-1.7b": (1.71, 0),
    "mistral-7b": (7.24, 0),
    "mistral-nemo-12b": (12.2, 0),
    "mistral-large-2": (123, 0),
    "qwen2.5-0.5b": (0.49, 0),
    "qwen2.5-1.5b": (1.54, 0),
    "qwen2.5-3b": (3.09, 0),
    "qwen2.5-7b": (7.61, 0),
    "qwen2.5-14b": (14.7, 0),
    "qwen2.5-32b": (32.5, 0),
    "qwen2.5-72b": (72.7, 0),
    "gemma-2-2b": (2.61, 0),
    "gemma-2-9b": (9.24, 0),
    "gemma-2-27b": (27.2, 0),
    "gemma-3-1b": (1.0, 0),
    "gemma-3-4b": (3.88, 0),
    "gpt2-medium": (0.355, 0),
    "gpt2-large": (0.774, 0),
    "gpt2-xl": (1.558, 0),
    "gpt3-6.7b": (6.7, 0),
    "gpt3-13b": (13.0, 0),
    "phi-3-mini": (3.82, 0),
    "bert-base": (0.11, 0),
    "mixtral-8x22b": (141, 39),
    "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v2": (236, 21),
}
# Figures in which a shipped model and known_models.toml differ on purpose.
OTHERWISE = {
    "gemma-3-12b": {"vocab_size"},
    "gemma-3-27b": {"vocab_size"},
    "gemma-3-4b": {"vocab_size"},
    "gpt3-6.7b": {"unfused_gelu"},
    "gpt3-13b": {"unfused_gelu"},
    "gpt3-175b": {"unfused_gelu"},
    # There the experts of every second layer are counted as those of the second half.
    "llama-4-maverick": {"first_dense_layers", "expert_every", "window", "window_layers"},
    "llama-4-scout": {"window", "window_layers"},
}
NOT_READ = {"mamba2-2.7b", "t5-3b", "t5-11b", "t5-base", "t5-large"}
NOT_READ |= {"vit-base", "vit-large", "vit-huge", "whisper-large"}


def figures(name: str) -> Transformer:
    return figures_of_config(resolve_model(name).config, name)


def active(model: Transformer) -> float:
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    return model.parameters - idle


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_parameters(name: str) -> None:
    model, (billions, billions_active) = figures(name), PUBLISHED[name]
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.015)
    if billions_active:
        tables = model.hidden_size * model.vocab_size
        counted = [active(model) - tables * left_out for left_out in (0, 1, 2)]
        nearest = min(counted, key=lambda count: abs(count - billions_active * 1e9))
        assert nearest == pytest.approx(billions_active * 1e9, rel=0.025)


@pytest.mark.parametrize("name", sorted(set(model_names()) - NOT_READ))
def test_figures_of_known_models(name: str) -> None:
    known = known_model(name)
    if known is None or known.figures is None:
        return
    mine, theirs = figures(name), known.figures
    different = {
        each.name
        for each in fields(Transformer)
        if each.compare and getattr(mine, each.name) != getattr(theirs, each.name)
    }
    assert different == OTHERWISE.get(name, set())


def test_names_of_the_hub() -> None:
    assert "qwen/qwen3.5-397b-a17b" not in model_names()
    assert resolve_model("moonshotai/Kimi-K2-Instruct").name == "kimi-k2"
    assert resolve_model("Qwen/Qwen3.5-397B-A17B").name == "qwen3.5-397b-a17b"


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("llama3-8b", "llama-3-8b"),
        ("Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("deepseek-r1", "deepseek-v3"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ],
)
def test_names_as_they_are_typed(typed: str, name: str) -> None:
    assert resolve_model(typed).name == name


@pytest.mark.parametrize("typed", ["llama-3-80b", "mistralai/Mistral-7B-v0.3", "qwen2.5-7b-1m"])
def test_no_other_model_is_taken_for_a_shipped_one(typed: str) -> None:
    with pytest.raises(ModelError):
        resolve_model(typed)


def test_no_two_models_are_typed_alike() -> None:
    assert len({_short_name(name) for name in model_names()}) == len(model_names())


def test_a_checkpoints_folder_is_read_where_it_is_named_like_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Llama-3-8B-Instruct"
    folder.mkdir()
    config = {**resolve_model("llama-3-8b").config, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert resolve_model("Llama-3-8B-Instruct").config["num_hidden_layers"] == 2


def test_places_of_experts_and_attention() -> None:
    maverick = figures("llama-4-maverick")
    assert (maverick.num_expert_layers, maverick.num_dense_layers) == (24, 24)
    assert (maverick.ffn_size, maverick.expert_size) == (16384, 8192)
    nano = figures("nemotron-3-nano")
    assert (nano.state_layers, nano.attention_count, nano.num_expert_layers) == (23, 6, 23)
    large = figures("qwen3.5-397b-a17b")
    assert (large.state_layers, large.attention_count, large.num_expert_layers) == (45, 15, 60)
    assert figures("gemma-3-27b").window_layers == 52  # 62 layers, every sixth has all keys


def test_what_figures_leave_out_is_noted() -> None:
    notes = " ".join(describe_model("deepseek-v3.2").notes)
    assert "sparse attention (index_topk 2048 keys per query) and its indexer" in notes
    assert "in chunks of 8192 tokens" in " ".join(describe_model("llama-4-scout").notes)
    assert "mtp_num_hidden_layers" in " ".join(describe_model("qwen3.5-27b").notes)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("mamba", {"hybrid_override_pattern": "MX*"}, "unknown kind of layer 'X'"),
        ("mamba", {"hybrid_override_pattern": "MM"}, "both mamba and attention"),
        ("mamba", {"mamba_num_heads": None}, "mamba_num_heads is missing"),
        ("delta", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("delta", {"linear_num_key_heads": None}, "linear_num_key_heads is missing"),
    ],
)
def test_hybrids_that_are_not_read(rule: str, changes: dict[str, object], message: str) -> None:
    name = "nemotron-3-nano" if rule == "mamba" else "qwen3.5-27b"
    config = {**resolve_model(name).config, **changes}
    config = {key: value for key, value in config.items() if value is not None}
    with pytest.raises(ModelError, match=message):
        hybrid_layers(rule, config, "config.json")
