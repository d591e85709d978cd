"""Figures read from traces: of modules that transformers builds, and of unlike ones in torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from profiles.errors import InputError, ModelError
from profiles.model.figures.described_model import describe_model, traced_figures
from profiles.model.figures.figures_from_config import CONFIG_KINDS, figures_of_config
from profiles.model.figures.transformer import LatentAttention, Transformer
from profiles.model.loaders import ModelSpec
from tests.profiles.model import unusual_modules
from tests.profiles.test_figures_from_config import config_of

MODULES = unusual_modules.__name__
# kimi_k2 and ministral have no configuration in the tests of configurations; traces of hybrids and
# of sparse attention have no figures.
DECODERS = sorted(
    {name for name, kind in CONFIG_KINDS.items() if not (kind.both_ways or kind.hybrid)}
    - {"kimi_k2", "ministral", "deepseek_v32", "glm_moe_dsa"}
)
# With these, every branch of profiles/model/figures that all of them take is taken.
IN_TEST = {
    *("deepseek_v3", "falcon", "gemma2", "gemma3_text", "gpt_bigcode", "gpt_oss", "llama"),
    *("llama4_text", "mixtral", "mpt", "opt", "qwen2_moe"),
}
# 4 layers of 128, 1,000 words, 4 heads, a feed-forward of 512: what the modules have in common.
USUAL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 128,
    "ffn_size": 512,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_size": 32,
    "vocab_size": 1000,
    "gated": False,
    "tied_embeddings": False,
}
GATED = {"gated": True, "ffn_size": 384}
GROUPED = GATED | {"num_kv_heads": 2}
LATENT = {
    "num_heads": 8,
    "num_kv_heads": 8,
    "head_size": 48,
    "latent": LatentAttention(
        query_rank=96, key_value_rank=64, nope_size=32, rope_size=16, value_size=32
    ),
}
EXPERTS = {"gated": True, "ffn_size": 0, "expert_size": 256}


def shown(figures: Transformer) -> dict[str, Any]:
    """The figures that differ from their defaults, without norms and reasons as text."""
    out = {"biases", "vector_parameters"}
    return {
        f.name: value
        for f in fields(Transformer)
        if f.compare and f.name not in out and (value := getattr(figures, f.name)) != f.default
    }


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        ("gpt", {"tied_embeddings": True, "learned_positions": 96}),
        ("separate", GROUPED),
        ("fused", GROUPED),
        ("repeated", GROUPED),
        ("gated_heads", GROUPED),
        ("gated_attention", GROUPED | {"gated_attention": True}),
        ("written", GATED),
        ("capped", GATED | {"window": 16, "window_layers": 2}),
        ("windows", GATED | {"window": 16, "window_layers": 2}),
        ("parallel", {}),
        ("fused_parallel", GATED),
        ("post_norm", {}),
        ("sandwich", {}),
        ("experts_in_a_loop", EXPERTS | {"num_experts": 8, "top_k": 2, "num_shared_experts": 2}),
        ("experts_in_a_stack", EXPERTS | {"gated": False, "num_experts": 4, "top_k": 1}),
        ("every_expert", EXPERTS | {"num_experts": 4, "top_k": 4}),
        (
            "first_dense",
            EXPERTS | {"ffn_size": 384, "num_experts": 8, "top_k": 2, "first_dense_layers": 1},
        ),
        ("latent", LATENT),
        ("latent_apart", LATENT),
        ("pairs", {}),
        ("two_in_one", {"num_layers": 8}),
        ("checkpointed", {}),
        ("torchs_own", {}),
    ],
)
def test_modules_in_plain_torch(module: str, changes: dict[str, Any]) -> None:
    found = describe_model(f"{MODULES}:{module}")
    assert shown(found.figures) == shown(Transformer(**USUAL | changes))
    assert found.sequence_length == 96


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        ("gpt", ""),
        ("separate", "LayerNorms in layers without biases"),
        ("sandwich", "fused RMS norms"),
        ("wide_sandwich", "further norms"),
    ],
)
def test_norms_that_our_executor_does_not_count(module: str, parts: str) -> None:
    assert describe_model(f"{MODULES}:{module}").figures.uncounted == parts


def test_gpt_has_biases_and_every_parameter() -> None:
    figures = describe_model(f"{MODULES}:gpt").figures
    assert figures.biases
    # 4 layers of 12 h^2 + 13 h, tables of (1,000 + 96) h, the final norm of 2 h.
    assert figures.parameters == 4 * (12 * 128**2 + 13 * 128) + 1096 * 128 + 2 * 128


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("every_second_layer", "layers with experts alternate with layers without"),
        ("growing", "its layers differ: some have .* feed-forward of 128, others .* of 256"),
        ("skips", "its blocks branch: the output of block 0 is used by blocks 1, 2, 3, 4"),
        ("encoder", "its attention uses keys on both sides"),
        ("last_token", "its head runs on 2 of 192 positions"),
        ("frozen", "of its parameters are frozen"),
        ("convolutions", "no block has a recognized attention; it has 2 convolutions"),
    ],
)
def test_what_figures_do_not_describe(module: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        describe_model(f"{MODULES}:{module}")
    assert f"{MODULES}:{module}" in str(error.value)
    assert "leave out --stack" in str(error.value)


def test_what_is_left_out_is_said() -> None:
    notes = describe_model(f"{MODULES}:capped").notes
    assert any("soft-capped" in note for note in notes)
    assert any("written out in matmuls" in note for note in notes)
    assert describe_model(f"{MODULES}:separate").notes == ()


@pytest.mark.parametrize(
    "kind", [k if k in IN_TEST else pytest.param(k, marks=pytest.mark.slow) for k in DECODERS]
)
def test_traces_agree_with_configurations(kind: str) -> None:
    # Windows as the class has them where the configuration is silent.
    config = config_of(kind) | ({"sliding_window": 128} if kind == "gpt_oss" else {})
    traced = traced_figures(ModelSpec(name=kind, source=kind, config=config)).figures
    told = shown(figures_of_config(config, kind))
    if kind == "llama4_text":
        told["top_k"] = 4  # transformers runs every expert on every token
    assert shown(traced) == told
    assert traced.parameters == pytest.approx(figures_of_config(config, kind).parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "layers", "windowed"), [("mistral", 3, 3), ("gemma2", 4, 2), ("gemma3_text", 6, 5)]
)
def test_windows_that_transformers_builds(kind: str, layers: int, windowed: int) -> None:
    config = config_of(kind) | {"sliding_window": 64, "num_hidden_layers": layers}
    figures = traced_figures(ModelSpec(name=kind, source=kind, config=config)).figures
    assert (figures.window, figures.window_layers) == (64, windowed)


def test_a_head_transform_is_named() -> None:
    with pytest.raises(InputError, match=r"1,056,648 are left over; .*transform.dense"):
        traced_figures(ModelSpec(name="bert", source="bert", config=config_of("bert")))


def test_traced_figures_are_kept(tmp_path, monkeypatch) -> None:
    spec = ModelSpec(name="small", source="small", config=config_of("llama"))
    first = traced_figures(spec, cache=tmp_path)
    monkeypatch.setattr("profiles.model.tracing.trace.trace_graph", None)
    assert traced_figures(spec, cache=tmp_path) == first


def test_types_without_rules_are_traced(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "hidden_size": 256, '
        '"num_layers": 4, "num_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512, '
        '"attention_types": [[["global"], 4]]}'
    )
    found = describe_model(str(path))
    assert found.figures.num_layers == 4
    assert found.figures.learned_positions == 512
    with pytest.raises(ModelError, match="need the model to be built"):
        figures_of_config({"model_type": "gpt_neo"}, "config.json")


def test_tokens_predicted_ahead_stand_in_the_configuration(tmp_path) -> None:
    config = config_of("deepseek_v3") | {"num_nextn_predict_layers": 1}
    assert figures_of_config(config, "x").predicted_ahead == 1
