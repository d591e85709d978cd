"""Known models: their figures against the parameter counts that their makers publish."""

from __future__ import annotations

import pytest

from profiles.document import read_document
from profiles.errors import DocumentError
from shardwright.runs.known_models import (
    KNOWN_MODELS_SCHEMA,
    KnownModels,
    known_model,
    known_models,
)

# Parameters in billions as printed: model cards and papers that known_models.toml cites.
PUBLISHED_BILLIONS = {
    "GPT-3 175B": 174.6,  # arXiv 2005.14165, table 2.1: 175.0; 174.6 by arXiv 2104.04473, table 2
    "PaLM 540B": 540.35,  # arXiv 2204.02311, table 1
    "PaLM 62B": 62.50,
    "PaLM 8B": 8.63,
    "BLOOM 176B": 176.25,  # model card: 176,247,271,424
    "BloombergGPT": 50.56,  # arXiv 2303.17564, table 4: 50,558,868,480
    "LLaMA 7B": 6.74,  # arXiv 2302.13971, table 2: 6.7, 13.0, 32.5, 65.2
    "LLaMA 13B": 13.02,
    "LLaMA 33B": 32.5,
    "LLaMA 65B": 65.2,
    "Llama 2 70B": 68.98,  # safetensors of the model repository
    "Llama 3 8B": 8.03,
    "Llama 3 70B": 70.55,
    "Llama 3.1 405B": 405.85,
    "Llama 3.2 1B": 1.24,
    "Llama 3.2 3B": 3.21,
    "Mistral 7B": 7.24,
    "Mixtral 8x7B": 46.7,
    "Mixtral 8x22B": 140.6,
    "Gemma 7B": 8.54,
    "Gemma 2 9B": 9.24,
    "Gemma 2 27B": 27.2,
    "gpt-oss 20B": 20.9,  # gpt-oss model card: 20.9 and 116.8
    "gpt-oss 120B": 116.8,
    "Qwen3 0.6B": 0.596,
    "Qwen3 8B": 8.2,
    "Qwen3 32B": 32.8,
    "Qwen3 30B-A3B": 30.5,
    "Qwen3 235B-A22B": 235.1,
    "DeepSeek-V2-Lite": 15.7,
    "DeepSeek-V2": 235.7,
    "DeepSeek-V3": 671.0,
    "Kimi K2": 1026.4,
    "Nemotron-4 340B": 341.0,
    "Llama 4 Scout": 107.8,  # 109 with its vision tower
    "Llama 4 Maverick": 400.7,
    "TinyLlama 1.1B": 1.1,
    "SmolLM2 135M": 0.1345,
    "SmolLM2 360M": 0.3618,
    "SmolLM2 1.7B": 1.711,
    "Phi-3 mini": 3.82,
    "Phi-4 mini": 3.84,
    "Phi-4": 14.66,
    "Code Llama 7B": 6.74,
    "Code Llama 13B": 13.02,
    "Code Llama 34B": 33.74,
    "Pythia 70M": 0.0704,
    "Pythia 160M": 0.1623,
    "Pythia 410M": 0.4053,
    "Pythia 1B": 1.012,
    "Pythia 1.4B": 1.415,
    "Pythia 2.8B": 2.775,
    "Pythia 6.9B": 6.857,
    "Pythia 12B": 11.846,
    "GPT-J 6B": 6.05,
    "Falcon 7B": 6.92,
    "Falcon 40B": 41.3,
    "Mistral Nemo 12B": 12.2,
    "Mistral Small 3 24B": 23.6,
    "Ministral 8B": 8.02,
    "Yi 6B": 6.06,
    "Yi 34B": 34.4,
    "DeepSeek-Coder 1.3B": 1.35,
    "DeepSeek-Coder 6.7B": 6.74,
    "DeepSeek-Coder 33B": 33.3,
    "DeepSeek LLM 7B": 6.91,
    "DeepSeek-R1-Distill-Qwen 1.5B": 1.78,
}


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_figures_give_the_published_parameter_count(name: str) -> None:
    model = next(m for m in known_models() if m.name == name)
    assert model.figures is not None
    assert model.figures.parameters / 1e9 == pytest.approx(PUBLISHED_BILLIONS[name], rel=0.005)


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("LLAMA3.1_405B", "Llama 3.1 405B"),
        ("LLAMA3_70B", "Llama 3 70B"),
        ("Llama3.1-8B-MaxText", "Llama 3 8B"),
        ("llama3-70b truncated to 12 layers", "Llama 3 70B"),
        ("Llama-2-70B LoRA", "Llama 2 70B"),
        ("llama2-7b", "Llama 2 7B"),
        ("llama 7B", "LLaMA 7B"),
        ("GPT3-355M", "GPT-3 350M"),
        ("GPT-3 175B", "GPT-3 175B"),
        ("gpt3-175B", "GPT-3 175B"),
        ("GPT OSS 120B", "gpt-oss 120B"),
        ("gpt-oss-120b", "gpt-oss 120B"),
        ("Qwen3_30B_a3B (tokendrop)", "Qwen3 30B-A3B"),
        ("DeepSeekV3 (w/o MTP)", "DeepSeek-V3"),
        ("deepseekv2 truncated to 4 layers", "DeepSeek-V2"),
        ("deepseek-v3", "DeepSeek-V3"),
        ("Kimi_K2", "Kimi K2"),
        ("Llama4-Scout-17B-16E-Maxtext", "Llama 4 Scout"),
        ("Mixtral-8x22B-MaxText", "Mixtral 8x22B"),
        ("Nemotron_3_Nano (arch not filled)", "Nemotron 3 Nano 30B-A3B"),
        ("T5-11B", "T5"),
        ("Qwen2.5-Math-1.5B", "Qwen2.5 1.5B"),
        ("Qwen2.5-Coder-32B-Instruct", "Qwen2.5 32B"),
        ("deepseek3-671b-batchsplit", "DeepSeek-V3"),
        ("deepseek2-16b", "DeepSeek-V2-Lite"),
        ("llama4-17b-16e", "Llama 4 Scout"),
        ("DeepSeek-R1-Distill-Llama-8B", "Llama 3 8B"),
        ("DeepSeek-R1-Distill-Qwen-14B", "Qwen2.5 14B"),
        ("QwQ-32B-Preview", "Qwen2.5 32B"),
        ("Qwen3-Coder-30B-A3B-Instruct", "Qwen3 30B-A3B"),
        ("Phi-3-mini-4k-instruct", "Phi-3 mini"),
        ("Phi-4-mini-reasoning", "Phi-4 mini"),
        ("phi-4-reasoning-plus", "Phi-4"),
        ("pythia-1.4b-deduped", "Pythia 1.4B"),
        ("CodeLlama-34b-Instruct-hf", "Code Llama 34B"),
        ("TinyLlama-1.1B-intermediate-step-1431k-3T", "TinyLlama 1.1B"),
    ],
)
def test_a_published_name_finds_its_model(published: str, name: str) -> None:
    found = known_model(published)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "name",
    [
        *("GPT 175B", "GPT-174.6B", "llama-like 8B", "mpt-7b", "Llama-like 70B", "llama-2-7bit"),
        *("GLM-4.7-Flash", "DeepSeek-R1-Distill-Mistral-7B", "DeepSeek-R1-0528-Qwen3-8B", ""),
        *("Phi-4-multimodal-instruct", "Mistral-Small-3.1-24B-Vision", "Phi-3-mini-128k-instruct"),
    ],
)
def test_other_names_mean_no_known_model(name: str) -> None:
    assert known_model(name) is None


def test_each_model_is_found_by_its_own_name() -> None:
    """No pattern hides a later model: each one's printed name finds it first."""
    spelled = {
        "Other Nemotron-H and Nemotron 3 models": "Nemotron-H 47B",
        "BERT large": "bert-large",
        "Image and recommendation models of MLPerf": "resnet",
    }
    for model in known_models():
        found = known_model(spelled.get(model.name, model.name))
        assert found is not None
        assert found.name == model.name


def test_a_model_needs_figures_or_a_reason(tmp_path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        f'schema = "{KNOWN_MODELS_SCHEMA}"\ndate = "2026-11-21"\n'
        '[[models]]\nname = "X"\npatterns = ["x"]\nsource = "nowhere"\n',
        encoding="utf-8",
    )
    with pytest.raises(DocumentError, match=r"models\[0\].*needs either figures or the reason"):
        read_document(file, KnownModels, schema=KNOWN_MODELS_SCHEMA)
