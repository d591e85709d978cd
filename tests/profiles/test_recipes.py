"""Recipes: each is of a known model and a known device, and of batches that its source logs."""

from __future__ import annotations

import pytest

from profiles.document import read_document
from profiles.errors import DocumentError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.known_models import (
    RECIPES_SCHEMA,
    Recipes,
    fill_from_recipe,
    known_models,
    recipes,
)
from shardwright.runs.run import PublishedRun

# Tokens per step that the recipes' own logs print (`total_weights`), or tables list as a batch:
# github.com/AI-Hypercomputer/tpu-recipes c8cfe2f68908, training/{trillium,v5p,ironwood}.
LOGGED_TOKENS = {
    ("GPT-3 175B", "tpu-v6e", 256, 2048): 1_572_864,
    ("Llama 3.1 405B", "tpu-v6e", 512, 8192): 4_194_304,
    ("Llama 3 70B", "tpu-v6e", 32, 8192): 524_288,
    ("Llama 3 70B", "tpu-v6e", 64, 8192): 1_048_576,
    ("Llama 3 70B", "tpu-v6e", 128, 8192): 4_194_304,
    ("Llama 3 70B", "tpu-v6e", 256, 8192): 10_485_760,
    ("Llama 3 8B", "tpu-v6e", 8, 8192): 196_608,
    ("Llama 3 8B", "tpu-v6e", 16, 8192): 393_216,
    ("Llama 3 8B", "tpu-v6e", 32, 8192): 786_432,
    ("Llama 3 8B", "tpu-v6e", 64, 8192): 2_621_440,
    ("Llama 3 8B", "tpu-v6e", 128, 8192): 4_194_304,
    ("Llama 3 8B", "tpu-v6e", 256, 8192): 8_388_608,
    ("Mistral 7B", "tpu-v6e", 8, 8192): 393_216,
    ("Mixtral 8x7B", "tpu-v6e", 256, 4096): 12_582_912,
    ("Mixtral 8x22B", "tpu-v6e", 256, 4096): 8_388_608,
    ("Gemma 3 12B", "tpu-v6e", 256, 32768): 8_388_608,
    ("Gemma 3 12B", "tpu-v6e", 1024, 32768): 33_554_432,
    ("GPT-3 175B", "tpu-v5p", 512, 2048): 4_194_304,
    ("Llama 3.1 405B", "tpu-v5p", 512, 8192): 8_388_608,
    ("Llama 4 Scout", "tpu-v5p", 512, 8192): 33_554_432,
    ("Llama 4 Maverick", "tpu-v5p", 128, 8192): 4_194_304,
    ("DeepSeek-V3", "tpu-v5p", 512, 8192): 25_165_824,
    ("DeepSeek-V3", "tpu-v7x", 128, 4096): 2048 * 4096,
    ("gpt-oss 120B", "tpu-v7x", 64, 8192): 1280 * 8192,
    ("Gemma 4 26B-A4B", "tpu-v7x", 256, 4096): 8192 * 4096,
    ("Llama 3.1 405B", "tpu-v7x", 256, 8192): 1536 * 8192,
    ("Llama 3 70B", "tpu-v7x", 256, 131072): 64 * 131072,
    ("Qwen3 235B-A22B", "tpu-v7x", 256, 4096): 8192 * 4096,
    ("GLM-130B", "a100-sxm-40gb", 768, 2048): 4224 * 2048,
    ("BloombergGPT", "a100-sxm-40gb", 512, 2048): 2048 * 2048,
}


@pytest.mark.parametrize("key", LOGGED_TOKENS, ids=str)
def test_batches_are_those_that_the_sources_print(key: tuple[str, str, int, int]) -> None:
    model, device, count, seq_len = key
    row = PublishedRun(row=1, id="r", num_devices=count, seq_len=seq_len)
    said: list[str] = []
    filled = fill_from_recipe(row, model=model, device=device, assumptions=said)
    assert filled.global_batch is not None
    assert filled.global_batch * seq_len == LOGGED_TOKENS[key]
    assert f"global_batch {filled.global_batch}" in said[0]


def test_recipes_name_known_models_and_devices() -> None:
    names = {model.name for model in known_models()}
    for recipe in recipes():
        assert recipe.model in names
        assert get_device(recipe.device).name == recipe.device
        degrees = recipe.tp * recipe.pp * recipe.cp
        assert all(count % degrees == 0 for count in recipe.num_devices)


def test_printed_answers_are_kept() -> None:
    row = PublishedRun(row=1, id="r", num_devices=16, recompute="full", micro_batch=1)
    filled = fill_from_recipe(row, model="Llama 3 8B", device="tpu-v6e", assumptions=[])
    assert (filled.recompute, filled.micro_batch, filled.global_batch) == ("full", 1, 48)


@pytest.mark.parametrize(
    "row",
    [
        PublishedRun(row=1, id="r", num_devices=16, tp=2),
        PublishedRun(row=1, id="r", num_devices=16, seq_len=4096),
        PublishedRun(row=1, id="r", num_devices=16, global_batch=64),
        PublishedRun(row=1, id="r", num_devices=16, dp=16, global_batch=48),
        PublishedRun(row=1, id="r", num_devices=17),
    ],
)
def test_another_run_takes_nothing(row: PublishedRun) -> None:
    said: list[str] = []
    assert fill_from_recipe(row, model="Llama 3 8B", device="tpu-v6e", assumptions=said) == row
    assert said == []


def test_a_batch_must_be_whole_sequences(tmp_path) -> None:
    file = tmp_path / "recipes.toml"
    file.write_text(
        f'schema = "{RECIPES_SCHEMA}"\ndate = "2026-11-21"\n[[recipes]]\nmodel = "X"\n'
        'device = "h100-sxm-80gb"\nnum_devices = [9]\nsource = "nowhere"\nseq_len = 1\n'
        "sequences_per_device = 0.5\n",
        encoding="utf-8",
    )
    with pytest.raises(DocumentError, match=r"X on 9 h100-sxm-80gb: the batch 4\.5 is not"):
        read_document(file, Recipes, schema=RECIPES_SCHEMA)


def test_a_recipe_says_its_network_and_precision_where_the_row_does_not() -> None:
    """BloombergGPT trained on p4d.24xlarge: 400 Gb/s of EFA per instance (arXiv 2303.17564)."""
    row = PublishedRun(row=1, id="r", num_devices=512)
    filled = fill_from_recipe(row, model="BloombergGPT", device="a100-sxm-40gb", assumptions=[])
    assert (filled.precision, filled.inter_node_link) == ("bf16", "EFA 4x100 Gb/s per node")
    printed = PublishedRun(row=1, id="r", num_devices=512, inter_node_link="8x200 Gb/s HDR IB")
    kept = fill_from_recipe(printed, model="BloombergGPT", device="a100-sxm-40gb", assumptions=[])
    assert kept.inter_node_link == "8x200 Gb/s HDR IB"
