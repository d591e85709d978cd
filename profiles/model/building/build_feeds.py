"""Inputs, targets and loss of a training step of a transformers model.

The task follows from the end of the architecture's name (loaders.py), the kind of input from the
module's `main_input_name`. Losses are the usual training losses as a mean over the batch, so that
micro-batches average.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from profiles.errors import ModelError
from profiles.model.building.build_image_tower import image_size, image_tower
from profiles.model.loaders import IMAGE_AND_TEXT, OWN_LOSS

Call = Callable[..., Any]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Sizes and types of the inputs: samples, positions (`length`), and the source of values.

    On the device `meta` tensors have no values.
    """

    batch: int
    length: int
    kind: torch.dtype
    device: str
    generator: torch.Generator

    def tokens(self, vocabulary: int, *shape: int) -> Tensor:
        """Integers below `vocabulary`, dimension 0 is the batch."""
        whole = (self.batch, *shape)
        if self.device == "meta":
            return torch.empty(whole, dtype=torch.long, device="meta")
        return torch.randint(0, vocabulary, whole, generator=self.generator).to(self.device)

    def noise(self, *shape: int) -> Tensor:
        """Normal numbers, dimension 0 is the batch."""
        whole = (self.batch, *shape)
        if self.device == "meta":
            return torch.empty(whole, dtype=self.kind, device="meta")
        drawn = torch.randn(whole, generator=self.generator)
        return drawn.to(device=self.device, dtype=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """A model's inputs and targets, its call, and its loss of (output, targets).

    tokens_per_sample  None if a sample is no sequence of tokens or positions
    """

    args: tuple[Tensor, ...]
    targets: Any
    call: Call
    loss_fn: Loss
    tokens_per_sample: int | None = None


def feed_of(module: nn.Module, config: Any, family: str, feed: Feed) -> Fed:
    """The step of a family (loaders.FAMILIES).

    Raises AttributeError if the configuration has no sizes for the inputs, ModelError if the module
    has another kind of input.
    """
    if family == IMAGE_AND_TEXT:
        return _image_and_text(module, config, feed)
    task = _TASKS[family]
    accepted = inspect.signature(module.forward).parameters
    main = str(getattr(module, "main_input_name", "input_ids"))
    needed = [x.name for x in accepted.values() if x.default is x.empty and x.kind in _BY_NAME]
    names = dict.fromkeys((main, *needed, *(x for x in task.inputs if x in accepted)))
    unknown = [name for name in names if name not in _INPUTS]
    if unknown:
        raise ModelError(
            f"the model's input {unknown[0]!r} cannot be made from a configuration; name the model "
            "as package.module:factory, which returns its inputs too"
        )
    args = {name: _INPUTS[name](module, config, feed) for name in names}
    # No attention mask: under fake tensors transformers would materialise an S x S one.
    settings = {"use_cache": False} if "use_cache" in accepted else {}
    return Fed(
        args=tuple(args.values()),
        targets=task.targets(config, feed, args),
        call=call_by_name(*args, gives=task.gives, **settings),
        loss_fn=task.loss_fn,
        tokens_per_sample=None if main in _NO_TOKENS else feed.length,
    )


def _image_and_text(module: nn.Module, config: Any, feed: Feed) -> Fed:
    """Samples of one image and then text, `length` positions in all."""
    tower = image_tower(module)
    images = feed.noise(*tower.shape)
    seen = tower.positions()
    if seen >= feed.length:
        raise ModelError(
            f"an image takes {seen} of the {feed.length} positions of a sample (--seq), which "
            "leaves none for text"
        )
    words = feed.tokens(config.text_config.vocab_size, feed.length - seen)
    return Fed(
        args=(images, words),
        targets=words,
        call=tower.call,
        loss_fn=_text_after_image,
        tokens_per_sample=feed.length,
    )


# --- inputs, by their names in transformers' forward methods --------------------------------------


def _words(module: nn.Module, config: Any, feed: Feed) -> Tensor:
    text = getattr(config, "text_config", config)
    length = feed.length if text is config else min(feed.length, text.max_position_embeddings)
    return feed.tokens(text.vocab_size, length)


def _answer(module: nn.Module, config: Any, feed: Feed) -> Tensor:
    limit = getattr(config, "max_target_positions", feed.length)
    return feed.tokens(config.vocab_size, min(feed.length, limit))


def _images(module: nn.Module, config: Any, feed: Feed) -> Tensor:
    parts = (getattr(config, name, None) for name in ("vision_config", "backbone_config"))
    part = next((x for x in parts if x is not None), config)
    frames = (part.num_frames,) if hasattr(part, "num_frames") else ()
    return feed.noise(*frames, getattr(part, "num_channels", 3), *image_size(part))


def _sound(module: Any, config: Any, feed: Feed) -> Tensor:
    """A spectrogram of the model's length, or as many audio samples as the model's convolutions
    reduce to `length` positions."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return feed.noise(config.max_length, config.num_mel_bins)
    positions = getattr(module, "_get_feat_extract_output_lengths", None)
    if positions is None:
        raise AttributeError("the model does not give the number of positions of a sound")

    def enough(samples: int) -> bool:
        return int(positions(torch.tensor(samples, device="cpu"))) >= feed.length

    return feed.noise(bisect_left(range(2**31), True, key=enough))


def _spectrogram(module: nn.Module, config: Any, feed: Feed) -> Tensor:
    if hasattr(config, "num_mel_bins"):
        return feed.noise(config.num_mel_bins, 2 * config.max_source_positions)
    if hasattr(config, "input_feat_per_channel"):
        return feed.noise(config.max_source_positions, config.input_feat_per_channel)
    return feed.noise(feed.length, config.feature_projection_input_dim)


def _series(*, future: bool = False, features: bool = False) -> Callable[..., Tensor]:
    """The past or future of a time series: its values, or `num_time_features` of its times."""

    def made(module: nn.Module, config: Any, feed: Feed) -> Tensor:
        if future:
            length = getattr(config, "prediction_length", None) or config.horizon_length
        else:
            length = config.context_length + max(getattr(config, "lags_sequence", None) or [0])
        if features:
            return feed.noise(length, config.num_time_features)
        channels = getattr(config, "num_input_channels", None)
        if channels is None and getattr(config, "input_size", 1) > 1:
            channels = config.input_size
        return feed.noise(length, *(() if channels is None else (channels,)))

    return made


_INPUTS: Mapping[str, Callable[[Any, Any, Feed], Tensor]] = {
    "input_ids": _words,
    "decoder_input_ids": _answer,
    "pixel_values": _images,
    "input_values": _sound,
    "input_features": _spectrogram,
    "past_values": _series(),
    "past_observed_mask": lambda *of: torch.ones_like(_series()(*of)),
    "past_time_features": _series(features=True),
    "future_values": _series(future=True),
    "future_time_features": _series(future=True, features=True),
}
_NO_TOKENS = ("pixel_values", "past_values")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def call_by_name(*names: str, gives: str = "logits", **settings: Any) -> Callable[..., Any]:
    """A call with keyword inputs of these names; `gives` are the parts of the output for the loss,
    "" for all of it."""
    parts = gives.split()

    def call(module: nn.Module, *args: Tensor) -> Any:
        output = module(**dict(zip(names, args, strict=True)), **settings)
        found = tuple(getattr(output, part) for part in parts)
        return found[0] if len(found) == 1 else found or output

    return call


# --- losses ---------------------------------------------------------------------------------------


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of each next token, in fp32."""
    shifted = logits[:, :-1].float().flatten(0, 1)
    return nn.functional.cross_entropy(shifted, tokens[:, 1:].flatten())


def _text_after_image(logits: Tensor, tokens: Tensor) -> Tensor:
    """`next_token_loss` of the text, whose positions are the last ones."""
    return next_token_loss(logits[:, -tokens.shape[1] :], tokens)


def span_loss(logits: tuple[Tensor, Tensor], ends: Tensor) -> Tensor:
    """Mean cross entropy of the beginning and end of a span, in fp32."""
    first, last = (nn.functional.cross_entropy(x.float(), ends[:, i]) for i, x in enumerate(logits))
    return (first + last) / 2


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of each sample, or of each of its tokens, in fp32."""
    return nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of each pixel, in fp32, with scores resized to the labels."""
    whole = nn.functional.interpolate(
        logits.float(), size=labels.shape[1:], mode="bilinear", align_corners=False
    )
    return nn.functional.cross_entropy(whole, labels)


def softmax_pair_loss(logits: Tensor, _: Any) -> Tensor:
    """The loss of scores [images, texts] in which each image selects its text, and each text its
    image (CLIP, Radford et al., arXiv 2103.00020, figure 3)."""
    right = torch.arange(logits.shape[0], device=logits.device)
    scores = logits.float()
    images = nn.functional.cross_entropy(scores, right)
    return (images + nn.functional.cross_entropy(scores.T, right)) / 2


def sigmoid_pair_loss(logits: Tensor, _: Any) -> Tensor:
    """The loss of scores [images, texts] in which each pair is classified as matching or not
    (SigLIP, Zhai et al., arXiv 2303.15343, algorithm 1)."""
    signs = 2 * torch.eye(logits.shape[0], device=logits.device) - 1
    return -nn.functional.logsigmoid(signs * logits.float()).sum() / math.prod(logits.shape[:1])


def ctc_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of all alignments of the labels (Graves et al., ICML 2006), per label, in fp32. Class 0
    is the blank."""
    scores = logits.float().log_softmax(-1).transpose(0, 1)
    positions, lengths = (labels.new_full(labels.shape[:1], x.shape[1]) for x in (logits, labels))
    return nn.functional.ctc_loss(scores, labels, positions, lengths, zero_infinity=True)


def assumed_loss(output: Any, targets: Any) -> Tensor:
    """The default loss of a factory: the output's `loss`, or the only number (a tensor without
    dimensions) of an output without names, if there is one, otherwise the mean square."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.is_floating_point():
        return own.mean()
    leaves = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
    numbers = [x for x in leaves if not x.dim() and x.is_floating_point() and x.requires_grad]
    if len(numbers) == 1 and isinstance(output, (Tensor, tuple, list)):
        return numbers[0]
    leaves = [x.abs() if x.is_complex() else x for x in leaves]
    leaves = [x for x in leaves if x.is_floating_point()]
    if not leaves:
        raise ModelError(
            "the model's output has no floating-point tensor to take a loss of; return (module, "
            "inputs, targets, loss_fn)"
        )
    return torch.stack([x.float().square().mean() for x in leaves]).mean()


# --- tasks ----------------------------------------------------------------------------------------


def _labels(name: str = "num_labels", *, each: bool = False) -> Callable[..., Tensor]:
    """One of `name` classes for each sample, or for each of its tokens."""

    def made(config: Any, feed: Feed, args: Mapping[str, Tensor]) -> Tensor:
        return feed.tokens(getattr(config, name), *(feed.length,) if each else ())

    return made


def _pixel_labels(config: Any, feed: Feed, args: Mapping[str, Tensor]) -> Tensor:
    return feed.tokens(config.num_labels, *args["pixel_values"].shape[2:])


def _transcript(config: Any, feed: Feed, args: Mapping[str, Tensor]) -> Tensor:
    """A label for every fourth position, none of them the blank."""
    return feed.tokens(config.vocab_size - 1, max(1, feed.length // 4)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """targets  of (config, feed, inputs)
    gives    parts of the output that are the loss's first argument, "" for all of it
    inputs   given in addition to the main one and those without a default, if they exist
    """

    targets: Callable[[Any, Feed, Mapping[str, Tensor]], Any]
    loss_fn: Loss
    gives: str = "logits"
    inputs: tuple[str, ...] = ()


def _pairs(loss_fn: Loss) -> Task:
    return Task(
        targets=lambda c, f, x: None,
        loss_fn=loss_fn,
        gives="logits_per_image",
        inputs=("input_ids", "pixel_values"),
    )


_TASKS: Mapping[str, Task] = {
    "causal": Task(targets=lambda c, f, x: x["input_ids"], loss_fn=next_token_loss),
    "masked": Task(targets=lambda c, f, x: x["input_ids"], loss_fn=class_loss),
    "tokens": Task(targets=_labels(each=True), loss_fn=class_loss),
    "spans": Task(
        targets=lambda c, f, x: f.tokens(f.length, 2),
        loss_fn=span_loss,
        gives="start_logits end_logits",
    ),
    "sequence": Task(targets=_labels(), loss_fn=class_loss),
    "vision": Task(targets=_labels(), loss_fn=class_loss),
    "pixels": Task(targets=_pixel_labels, loss_fn=pixel_loss),
    "ctc": Task(targets=_transcript, loss_fn=ctc_loss),
    "seq2seq": Task(
        targets=lambda c, f, x: x["decoder_input_ids"],
        loss_fn=class_loss,
        inputs=("decoder_input_ids",),
    ),
    "pairs": _pairs(softmax_pair_loss),
    "sigmoid pairs": _pairs(sigmoid_pair_loss),
    OWN_LOSS: Task(
        targets=lambda c, f, x: None,
        loss_fn=assumed_loss,
        gives="",
        inputs=("decoder_input_ids", "future_values", "future_time_features"),
    ),
}
