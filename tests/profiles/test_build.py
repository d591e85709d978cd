"""What can be built from a configuration, and what is said of one that cannot."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiles.errors import ModelError, ShardwrightError
from profiles.model.building.build import build_model
from profiles.model.loaders import ModelSpec, resolve_model
from profiles.model.tracing.trace import trace_graph

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return ModelSpec(name="ours", source="config.json", config=config)


def test_convolutions_without_an_image_size_get_imagenets() -> None:
    """A ResNet's configuration has no image_size: any fits."""
    config = {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_channels": 3,
    }
    (images,) = build_model(spec_of(config), micro_batch=2, sequence_length=1).args
    assert images.shape == (2, 3, 224, 224)


def test_the_language_part_of_a_larger_model_is_found() -> None:
    """`gemma3_text` is a type without a module of its own in transformers."""
    config = LLAMA | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    module = build_model(spec_of(config), micro_batch=1, sequence_length=8).module
    assert type(module).__name__ == "Gemma3ForCausalLM"


def test_a_class_is_found_in_a_folder_of_another_name() -> None:
    """transformers has data2vec-text in the folder data2vec: the class was reported missing."""
    small = {key: LLAMA[key] for key in LLAMA if key.startswith(("num_", "hidden", "vocab"))}
    config = {"architectures": ["Data2VecTextForMaskedLM"], "model_type": "data2vec-text"}
    built = build_model(spec_of(small | config), micro_batch=1, sequence_length=8)
    assert type(built.module).__name__ == "Data2VecTextForMaskedLM"


_SOUND = {"conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [8, 4], "vocab_size": 20}
_SERIES = {"context_length": 32, "prediction_length": 8, "d_model": 16, "ffn_dim": 32}
_SPEECH = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 20, "encoder_layers": 1}


@pytest.mark.parametrize(
    ("architecture", "model_type", "config", "shapes", "tokens"),
    [
        ("BertModel", "bert", {}, [(2, 24)], 24),
        ("ViTForMaskedImageModeling", "vit", {"image_size": 32}, [(2, 3, 32, 32)], None),
        # 8 + 4 * (4 - 1) samples give 4 values, and 4 + 2 * 23 = 50 of these 24 positions.
        ("HubertForCTC", "hubert", _SOUND, [(2, 8 + 4 * 49)], 24),
        ("WhisperForAudioClassification", "whisper", _SPEECH, [(2, 8, 40)], 24),
        ("PatchTSTForPrediction", "patchtst", _SERIES, [(2, 32, 2), (2, 8, 2)], None),
    ],
)
def test_inputs_follow_from_the_names_in_the_forward_method(
    architecture: str,
    model_type: str,
    config: dict[str, Any],
    shapes: list[tuple[int, ...]],
    tokens: int | None,
) -> None:
    """Classes whose name tells no task were refused, and losses over alignments."""
    small = {key: value for key, value in LLAMA.items() if not key.startswith("vocab")} | {
        "architectures": [architecture],
        "model_type": model_type,
        "num_input_channels": 2,
        "num_hidden_layers": 1,
    }
    built = build_model(spec_of(small | config), micro_batch=2, sequence_length=24, device="cpu")
    assert ([tuple(x.shape) for x in built.args], built.tokens_per_sample) == (shapes, tokens)
    loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
    loss.backward()
    assert any(x.grad is not None for x in built.module.parameters())


def test_the_loss_over_alignments_is_that_of_transformers() -> None:
    config = _SOUND | {
        "architectures": ["Wav2Vec2ForCTC"],
        "model_type": "wav2vec2",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "ctc_loss_reduction": "mean",
        "pad_token_id": 0,
    }
    built = build_model(spec_of(config), micro_batch=2, sequence_length=16, device="cpu")
    own = built.module(input_values=built.args[0], labels=built.targets)
    torch.testing.assert_close(built.loss_fn(own.logits, built.targets), own.loss)


VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
GEMMA_TEXT = LLAMA | {"model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 16}
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 4,
    "text_config": {key: GEMMA_TEXT[key] for key in GEMMA_TEXT if key != "architectures"},
    "vision_config": VISION,
}


def test_an_image_comes_before_the_text_of_a_sample() -> None:
    """16 patches are pooled to 4 positions; the other 20 of 24 are text."""
    built = build_model(spec_of(GEMMA), micro_batch=2, sequence_length=24, device="cpu")
    images, words = built.args
    assert (images.shape, words.shape) == ((2, 3, 32, 32), (2, 20))
    logits = built.call(built.module, images, words)
    assert logits.shape[:2] == (2, 24)
    # The loss is that of the text, and every weight of both towers that gives a feature gets a
    # gradient.
    alone = nn.functional.cross_entropy(
        logits[:, 4:-1].flatten(0, 1).float(), words[:, 1:].flatten()
    )
    loss = built.loss_fn(logits, built.targets)
    torch.testing.assert_close(loss, alone)
    loss.backward()
    without = {name for name, x in built.module.named_parameters() if x.grad is None}
    assert {name for name in without if "vision_tower.head" not in name} == set()


def test_an_image_must_leave_positions_for_text() -> None:
    with pytest.raises(ModelError, match=r"takes 4 of the 4 positions of a sample \(--seq\)"):
        build_model(spec_of(GEMMA), micro_batch=1, sequence_length=4)


def test_sizes_that_contradict_each_other_are_a_fault_of_the_configuration() -> None:
    """A pooling from 16 patches to 256 positions; it ended in an error of torch."""
    config = {**GEMMA, "mm_tokens_per_image": 256}
    with pytest.raises(ModelError, match=r"cannot be made .* stride .* check its sizes"):
        build_model(spec_of(config), micro_batch=1, sequence_length=512)


def test_the_language_model_of_a_file_with_towers(tmp_path: Path) -> None:
    """`#text_config` after the name is the part below that key; Qwen3-VL's layers are Qwen3's."""
    path = tmp_path / "config.json"
    part = {key: value for key, value in LLAMA.items() if key != "architectures"}
    part |= {"model_type": "qwen3_vl_text", "head_dim": 16}
    path.write_text(json.dumps({**GEMMA, "text_config": part}))
    spec = resolve_model(f"{path}#text_config")
    assert spec.family == "causal"
    module = build_model(spec, micro_batch=1, sequence_length=8).module
    assert type(module).__name__ == "Qwen3ForCausalLM"
    path.write_text(json.dumps(LLAMA))
    with pytest.raises(ModelError, match="#text_config: the file has no table text_config"):
        resolve_model(f"{path}#text_config")


def test_towers_of_sound_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GEMMA, "audio_config": {}}))
    with pytest.raises(ModelError, match=r"vision_config, audio_config.*give .*#text_config"):
        resolve_model(str(path))
    # Older checkpoints have the language model's keys beside the section of the other tower.
    path.write_text(json.dumps({**GEMMA, "text_config": None} | {"hidden_size": 64}))
    with pytest.raises(ModelError, match=r"save the file without vision_config, with the language"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": 64.5}, r"cannot be built from this configuration: .*hidden_size"),
        ({"hidden_size": float("nan")}, r"cannot be built from this configuration: .*hidden_size"),
        ({"hidden_size": "64"}, r"cannot be built from this configuration: .*hidden_size"),
        ({"architectures": ["LamaForCausalLM"]}, "transformers has no LamaForCausalLM"),
        ({"model_type": "no_such"}, "transformers has no LlamaForCausalLM"),
        (
            {"architectures": ["DecisionTransformerModel"], "model_type": "decision_transformer"},
            "the model's input 'states' cannot be made from a configuration",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], why: str) -> None:
    config = LLAMA | changes
    if config["model_type"] == "decision_transformer":
        config = changes
    with pytest.raises(ModelError, match=f"(?s){why}"):
        build_model(spec_of(config), micro_batch=1, sequence_length=8)


class Spectral(nn.Module):
    """Complex weights between real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.middle = nn.Linear(5, 5, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.middle(torch.fft.rfft(self.first(x).float()))
        out: Tensor = self.last(torch.fft.irfft(turned, n=8).to(x.dtype))
        return out


class Undecided(nn.Module):
    """What runs depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) if x.sum() > 0 else self.other(x)
        return out


class Paired(nn.Linear):
    """It needs two rows of a sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, 2, 8))


class Chosen(nn.Module):
    """Its output has nothing that a loss could be taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x).argmax(-1)
        return out


def _made(make: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (make(), torch.randn(4, 8))


spectral, undecided, chosen = map(_made, (Spectral, Undecided, Chosen))
paired = _made(lambda: Paired(8, 8))
untrained = _made(lambda: nn.Linear(8, 8).requires_grad_(False))
unsized = _made(lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8)))


def scripted() -> tuple[nn.Module, Tensor]:
    with torch.device("cpu"):
        return nn.Sequential(nn.Linear(4, 8), torch.jit.script(nn.Linear(8, 8))), torch.randn(4, 4)


class Ragged(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        parts = torch.nested.nested_tensor_from_jagged(x, torch.arange(0, x.shape[0] + 1))
        return super().forward(parts).values()


def ragged() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(4, 8), Ragged(8, 8)), torch.randn(4, 4)


class Packed(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override] # of one input
        lengths = torch.arange(1, x.shape[0] + 1).flip(0)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(super().forward(packed)[0])[0]


def packed() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(4, 8), Packed(8, 8)), torch.randn(4, 4, 4)


def graph_of_edges() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return nn.Bilinear(4, 4, 8), (torch.randn(6, 4), torch.randn(9, 4))


def factory_spec(factory: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    monkeypatch.setitem(sys.modules, "ours", types.ModuleType("ours"))
    monkeypatch.setattr("ours.made", factory, raising=False)
    return ModelSpec(name="made", source="ours:made", factory="ours:made")


def test_complex_weights_stay_complex(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = factory_spec(spectral, monkeypatch)
    module = build_model(spec, micro_batch=1, sequence_length=1, dtype="bfloat16").module
    kinds = {name: p.dtype for name, p in module.named_parameters()}
    assert kinds["middle.weight"] == torch.complex64
    assert kinds["first.weight"] == torch.bfloat16
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32")
    sizes = [math.prod(p.full_shape) for block in graph.blocks for p in block.parameters]
    assert sum(sizes) == 8 * 8 + 8 + 5 * 5 + 5 + 8 * 2 + 2


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (undecided, "a value decides what runs"),
        (chosen, "output has no floating-point tensor to take a loss of"),
        (
            paired,
            r"invalid for input .* Inputs of shape \(1, 8\) were given; package.module:factory",
        ),
        (untrained, "no parameter that needs a gradient reaches the loss"),
        (unsized, "0.weight has no shape yet; call the module once"),
        (scripted, "1 is a torch.jit script, whose ops cannot be traced; return the original"),
        (ragged, "nested tensors have shapes that depend on values, and are not traced; pad"),
        (
            packed,
            "a packed sequence is as long as its lengths say: give",
        ),
        (graph_of_edges, "the batch.* give graphs of equal size as"),
    ],
)
def test_modules_that_cannot_be_traced_say_what_to_do(
    factory: Callable[[], Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShardwrightError, match=why):
        trace_graph(
            factory_spec(factory, monkeypatch), micro_batch=1, sequence_length=1, dtype="float32"
        )
