"""Figures of configurations against the modules that transformers builds from them, on meta."""

from __future__ import annotations

import re
from typing import Any

import pytest

from profiles.errors import ModelError
from profiles.model.building.build import build_model
from profiles.model.figures.described_model import why_not_split
from profiles.model.figures.figures_from_config import CONFIG_KINDS, figures_of_config
from profiles.model.loaders import ModelSpec

_USUAL: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 5000,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"moe_intermediate_size": 512, "num_experts_per_tok": 2}
_LATENT = {
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "num_key_value_heads": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_DELTA = {
    "head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 8,
    "linear_value_head_dim": 64,
    "linear_key_head_dim": 64,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_GPT = {
    "n_embd": 1024,
    "n_head": 16,
    "n_layer": 3,
    "n_positions": 512,
    "vocab_size": 5000,
    "rotary_dim": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_INDEXED = {"index_n_heads": 1, "index_head_dim": 32, "index_topk": 64}
# Model type -> what its class is called, and keys beside the usual ones.
_TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama4_text": (
        "Llama4ForCausalLM",
        {"num_local_experts": 4, "intermediate_size_mlp": 2816, "num_experts_per_tok": 1}
        | {"interleave_moe_layer_step": 1, "head_dim": 64},
    ),
    "mistral": ("MistralForCausalLM", {"head_dim": 64}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 128}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {"num_experts": 8, "shared_expert_intermediate_size": 1024} | _EXPERTS,
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {"num_experts": 8, "head_dim": 64} | _EXPERTS),
    "deepseek_v2": ("DeepseekV2ForCausalLM", _LATENT | _EXPERTS),
    "deepseek_v3": ("DeepseekV3ForCausalLM", _LATENT | _EXPERTS),
    "deepseek_v32": ("DeepseekV32ForCausalLM", _LATENT | _EXPERTS | _INDEXED),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", _LATENT | _EXPERTS | _INDEXED),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {"num_experts": 8, "shared_expert_intermediate_size": 512} | _DELTA | _EXPERTS,
    ),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", _DELTA),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeForCausalLM",
        {"num_experts": 8, "shared_expert_intermediate_size": 1024} | _DELTA | _EXPERTS,
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {"hybrid_override_pattern": "ME*-M*", "num_hidden_layers": 6, "head_dim": 64}
        | {"mamba_num_heads": 16, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 4}
        | {"n_routed_experts": 8, "n_shared_experts": 1}
        | {"moe_shared_expert_intermediate_size": 1024}
        | _EXPERTS,
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 5632}
        | {"layer_types": ["mamba", "attention", "mamba"], "mamba_d_head": "auto"}
        | {"mamba_n_heads": 32, "mamba_d_state": 64, "mamba_n_groups": 2},
    ),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {}),
    "gemma3_text": ("Gemma3ForCausalLM", {}),
    "phi": ("PhiForCausalLM", {"num_key_value_heads": 16}),
    "phi3": ("Phi3ForCausalLM", {}),
    "olmo": ("OlmoForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 2}),
    "granite": ("GraniteForCausalLM", {}),
    "granitemoe": ("GraniteMoeForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "cohere": ("CohereForCausalLM", {}),
    "cohere2": ("Cohere2ForCausalLM", {}),
    "glm": ("GlmForCausalLM", {}),
    "glm4": ("Glm4ForCausalLM", {}),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 64}
        | {"n_group": 1, "topk_group": 1}
        | _EXPERTS,
    ),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "stablelm": ("StableLmForCausalLM", {}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "seed_oss": ("SeedOssForCausalLM", {}),
    "exaone4": ("Exaone4ForCausalLM", {}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {}),
    "arcee": ("ArceeForCausalLM", {"head_dim": 64}),
    "nemotron": ("NemotronForCausalLM", {"head_dim": 64}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "gpt2": ("GPT2LMHeadModel", _GPT),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", _GPT),
    "gptj": ("GPTJForCausalLM", _GPT),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 4096, "word_embed_proj_dim": 1024}),
    "bloom": ("BloomForCausalLM", {"n_head": 16, "n_layer": 3}),
    "falcon": ("FalconForCausalLM", {"num_kv_heads": 4, "alibi": False}),
    "mpt": ("MptForCausalLM", {"d_model": 1024, "n_heads": 16, "n_layers": 3}),
    "bert": ("BertForMaskedLM", {}),
    "roberta": ("RobertaForMaskedLM", {}),
    "xlm_roberta": ("XLMRobertaForMaskedLM", {}),
    "camembert": ("CamembertForMaskedLM", {}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 1024, "hidden_dim": 4096, "n_heads": 16, "n_layers": 3},
    ),
    "modernbert": ("ModernBertForMaskedLM", {"cls_token_id": 1, "sep_token_id": 2}),
}
# The pooled head of masked models (a square matrix), and biases of attention alone, are in no
# figure; on the tiny models here they weigh more than on real ones.
_NOT_IN_FIGURES = 0.035


# Usual keys that a type's configurations do not have.
_ONE_HEAD_EACH: tuple[str, ...] = (
    "gpt_neox",
    "opt",
    "bloom",
    "mpt",
    "falcon",
    "bert",
    "roberta",
    "xlm_roberta",
)
_ONE_HEAD_EACH += ("camembert", "distilbert", "modernbert")
_OWN_WIDTHS = ("opt", "bloom", "mpt", "falcon", "distilbert")


def config_of(kind: str) -> dict[str, Any]:
    name, more = _TYPES[kind]
    usual = {} if more is _GPT else dict(_USUAL)
    if kind in _ONE_HEAD_EACH:
        usual.pop("num_key_value_heads")
    if kind in _OWN_WIDTHS:
        usual.pop("intermediate_size")
    return {"architectures": [name], "model_type": kind} | usual | more


def built_parameters(config: dict[str, Any]) -> int:
    spec = ModelSpec(name="small", source="config.json", config=config)
    module = build_model(spec, micro_batch=1, sequence_length=16).module
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("kind", sorted(_TYPES))
def test_figures_have_the_parameters_of_the_module(kind: str) -> None:
    config = config_of(kind)
    figures = figures_of_config(config, kind)
    assert figures.parameters == pytest.approx(built_parameters(config), rel=_NOT_IN_FIGURES)


_LAYER = re.compile(r".*?\.\d+(?=\.)")
_SPLIT_KINDS = ("llama", "falcon", "olmo2", "qwen3_moe")


@pytest.mark.parametrize("kind", _SPLIT_KINDS)
def test_layers_that_are_split_in_part_are_not_counted(kind: str) -> None:
    assert_uncounted_if_split_in_part(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(_TYPES) - set(_SPLIT_KINDS)))
def test_layers_of_any_type_that_are_split_in_part_are_not_counted(kind: str) -> None:
    assert_uncounted_if_split_in_part(kind)


def assert_uncounted_if_split_in_part(kind: str) -> None:
    config = config_of(kind)
    spec = ModelSpec(name="small", source="config.json", config=config)
    module = build_model(spec, micro_batch=1, sequence_length=16).module
    layers = dict.fromkeys(
        match[0] for name, _ in module.named_parameters() if (match := _LAYER.match(name))
    )
    figures = figures_of_config(config, kind)
    assert figures.uncounted or not why_not_split(spec, tuple(layers), 1)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "opt", "falcon", "qwen3_moe"])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_as_the_configuration_says(kind: str, tied: bool) -> None:
    config = config_of(kind) | {"tie_word_embeddings": tied}
    assert figures_of_config(config, kind).tied_embeddings is tied
    assert figures_of_config(config, kind).parameters == pytest.approx(
        built_parameters(config), rel=_NOT_IN_FIGURES
    )


@pytest.mark.parametrize("layer_types", [["mamba", "attention", "mamba"], ["attention"] * 3])
def test_shared_experts_alone_are_the_feed_forward(layer_types: list[str]) -> None:
    """Granite 4.0's dense models, with and without a recurrence."""
    dense = {"num_local_experts": 0, "shared_intermediate_size": 1536, "layer_types": layer_types}
    config = config_of("granitemoehybrid") | dense
    figures = figures_of_config(config, "granite")
    assert (figures.ffn_size, figures.num_experts) == (1536, 0)
    assert figures.state_layers == layer_types.count("mamba")
    assert figures.parameters == pytest.approx(built_parameters(config), rel=_NOT_IN_FIGURES)


def test_every_kind_is_counted() -> None:
    # kimi_k2 is deepseek_v3's code under another name; ministral needs a newer module's keys.
    assert set(CONFIG_KINDS) - set(_TYPES) == {"kimi_k2", "ministral"}


@pytest.mark.parametrize(
    ("kind", "billions", "keys"),
    [
        # Model cards of huggingface.co, "Model size", read 2026-11-21.
        (
            "gpt_oss",
            20.9,
            {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64}
            | {"num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24}
            | {"vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4},
        ),
        (
            "deepseek_v2",
            235.7,
            {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536}
            | {"n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6}
            | {"first_k_dense_replace": 1, "num_attention_heads": 128, "q_lora_rank": 1536}
            | {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
            | {"v_head_dim": 128, "num_hidden_layers": 60, "vocab_size": 102400},
        ),
        (
            "falcon",
            6.92,
            {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32}
            | {"vocab_size": 65024, "multi_query": True},
        ),
        (
            "opt",
            6.66,
            {"hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32}
            | {"num_hidden_layers": 32, "vocab_size": 50272, "max_position_embeddings": 2048},
        ),
    ],
)
def test_published_sizes(kind: str, billions: float, keys: dict[str, Any]) -> None:
    figures = figures_of_config({"model_type": kind} | keys, kind)
    assert figures.parameters == pytest.approx(billions * 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba2"}, "need the model to be built and traced"),
        ({"model_type": "t5"}, "need the model to be built and traced"),
        ({"hidden_size": 0}, "hidden_size must be a whole number of 1 or more, is 0"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number of 1 or more, is 'many'"),
        ({"model_type": "opt"}, "ffn_dim must be a whole number of 1 or more, is None"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": 2},
            "moe_layer_freq places dense layers between",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [2]},
            "mlp_only_layers places dense layers between",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_layers": [2]},
            "moe_layers places dense layers between",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
            | {"shared_expert_intermediate_size": 700},
            "shared_expert_intermediate_size=700 is not a multiple of .* width 512",
        ),
    ],
)
def test_what_is_no_chain_of_equal_layers(changes: dict[str, Any], why: str) -> None:
    config = config_of("llama") | changes
    if changes == {"model_type": "opt"}:
        del config["intermediate_size"]
    with pytest.raises(ModelError, match=why):
        figures_of_config(config, "config.json")


@pytest.mark.parametrize(
    ("kind", "changes", "counts"),
    [
        ("qwen2_moe", {"decoder_sparse_step": 2, "num_hidden_layers": 5}, (2, 3)),
        ("llama4_text", {"interleave_moe_layer_step": 2, "num_hidden_layers": 4}, (2, 2)),
        ("llama4_text", {"interleave_moe_layer_step": 3, "num_hidden_layers": 4}, (1, 3)),
    ],
)
def test_experts_in_every_nth_layer(
    kind: str, changes: dict[str, int], counts: tuple[int, int]
) -> None:
    config = config_of(kind) | changes | {"intermediate_size_mlp": 4096}
    if kind == "qwen2_moe":
        config |= {"layer_types": ["full_attention"] * 5}
    figures = figures_of_config(config, kind)
    assert (figures.num_expert_layers, figures.num_dense_layers) == counts
    assert figures.parameters == pytest.approx(built_parameters(config), rel=_NOT_IN_FIGURES)


LLAMA_LIKE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 100,
    "sliding_window": 16,
}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"model_type": "mistral"}, 12),
        ({"model_type": "gemma2"}, 6),
        ({"model_type": "gemma3_text"}, 10),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 4}, 9),
        ({"model_type": "llama"}, 0),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 8}, 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 8}, 4),
        ({"model_type": "llama", "layer_types": ["sliding_attention", "full_attention"] * 6}, 6),
    ],
)
def test_windows_of_attention(changes: dict[str, object], layers: int) -> None:
    figures = figures_of_config({**LLAMA_LIKE, **changes}, "config.json")
    assert (figures.window, figures.window_layers) == (16 if layers else 0, layers)
