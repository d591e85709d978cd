"""Inputs, targets and loss of a training step of a transformers model.

The task follows from the end of the architecture's name (loaders.py), the kind of input from the
module's `main_input_name`. Losses are the usual training losses as a mean over the batch, so that
micro-batches average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profiles.errors import ModelError
from profiles.model.building.build_image_tower import image_size, image_tower
from profiles.model.loaders import IMAGE_AND_TEXT

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
    """A model's inputs and targets, its call, and its loss of (output, targets)."""

    args: tuple[Tensor, ...]
    targets: Any
    call: Call
    loss_fn: Loss


Task = Callable[[nn.Module, Any, Feed], Fed]


def feed_of(module: nn.Module, config: Any, family: str, feed: Feed) -> Fed:
    """The step of a family (loaders.FAMILIES).

    Raises AttributeError if the configuration has no sizes for the inputs, ModelError if the module
    has another kind of input.
    """
    return _FEEDS[family](module, config, feed)


# --- tasks ----------------------------------------------------------------------------------------


def _words(call: Call, loss_fn: Loss, labels: str = "") -> Task:
    """The task with one label per token: the tokens, or one of the configuration's `labels`
    classes."""

    def fed(module: nn.Module, config: Any, feed: Feed) -> Fed:
        words = feed.tokens(config.vocab_size, feed.length)
        wanted = feed.tokens(getattr(config, labels), feed.length) if labels else words
        return Fed(args=(words,), targets=wanted, call=call, loss_fn=loss_fn)

    return fed


def _spans(module: nn.Module, config: Any, feed: Feed) -> Fed:
    words = feed.tokens(config.vocab_size, feed.length)
    ends = feed.tokens(feed.length, 2)
    return Fed(args=(words,), targets=ends, call=_call_spans, loss_fn=span_loss)


def _classes(module: nn.Module, config: Any, feed: Feed) -> Fed:
    """One label per sample: a text, an image or a sound."""
    labels = feed.tokens(config.num_labels)
    name = str(getattr(module, "main_input_name", "input_ids"))
    given, call = _main_input(name, config, feed)
    return Fed(args=(given,), targets=labels, call=call, loss_fn=class_loss)


def _pixels(module: nn.Module, config: Any, feed: Feed) -> Fed:
    images = _images(config, feed)
    labels = feed.tokens(config.num_labels, *images.shape[2:])
    return Fed(args=(images,), targets=labels, call=_call_images, loss_fn=pixel_loss)


def _seq2seq(module: nn.Module, config: Any, feed: Feed) -> Fed:
    if hasattr(config, "num_mel_bins"):
        source = feed.noise(config.num_mel_bins, 2 * config.max_source_positions)
        length, call = min(feed.length, config.max_target_positions), _call_speech
    else:
        source = feed.tokens(config.vocab_size, feed.length)
        length, call = feed.length, _call_seq2seq
    tokens = feed.tokens(config.vocab_size, length)
    return Fed(args=(source, tokens), targets=tokens, call=call, loss_fn=class_loss)


def _pairs(module: nn.Module, config: Any, feed: Feed) -> Fed:
    """Pairs of texts and images."""
    text = config.text_config
    words = feed.tokens(text.vocab_size, min(feed.length, text.max_position_embeddings))
    images = _images(config.vision_config, feed)
    sigmoid = getattr(module, "logit_bias", None) is not None
    loss_fn = sigmoid_pair_loss if sigmoid else softmax_pair_loss
    return Fed(args=(words, images), targets=None, call=_call_pairs, loss_fn=loss_fn)


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
    loss = _text_after_image
    return Fed(args=(images, words), targets=words, call=tower.call, loss_fn=loss)


# --- inputs ---------------------------------------------------------------------------------------


def _main_input(name: str, config: Any, feed: Feed) -> tuple[Tensor, Callable[..., Any]]:
    if name == "input_ids":
        return feed.tokens(config.vocab_size, feed.length), _call_tokens
    if name == "pixel_values":
        return _images(config, feed), _call_images
    if name == "input_values":
        return _sound(config, feed), _call_sound
    raise ModelError(
        f"the model's input {name!r} cannot be made from a configuration; name the model as "
        "package.module:factory, which returns its inputs too"
    )


def _images(config: Any, feed: Feed) -> Tensor:
    part = getattr(config, "vision_config", config)
    frames = (part.num_frames,) if hasattr(part, "num_frames") else ()
    return feed.noise(*frames, part.num_channels, *image_size(part))


def _sound(config: Any, feed: Feed) -> Tensor:
    """A spectrogram of the model's length, or as many audio samples as the model's convolutions
    reduce to `length` positions."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return feed.noise(config.max_length, config.num_mel_bins)
    samples = feed.length
    for kernel, stride in reversed(list(zip(config.conv_kernel, config.conv_stride, strict=True))):
        samples = (samples - 1) * stride + kernel
    return feed.noise(samples)


# --- calls ----------------------------------------------------------------------------------------


def call_by_name(*names: str, gives: str = "logits", **settings: Any) -> Callable[..., Any]:
    """A call with keyword inputs of these names; `gives` is the part of the output for the loss, ""
    for all of it."""

    def call(module: nn.Module, *args: Tensor) -> Any:
        output = module(**dict(zip(names, args, strict=True)), **settings)
        return getattr(output, gives) if gives else output

    return call


# No attention mask: under fake tensors transformers would materialise an S x S one.
_call_causal = call_by_name("input_ids", use_cache=False)
_call_tokens = call_by_name("input_ids")
_call_images = call_by_name("pixel_values")
_call_sound = call_by_name("input_values")
_call_speech = call_by_name("input_features", "decoder_input_ids", use_cache=False)
_call_seq2seq = call_by_name("input_ids", "decoder_input_ids", use_cache=False)
_call_pairs = call_by_name("input_ids", "pixel_values", gives="logits_per_image")


def _call_spans(module: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    output = module(input_ids=tokens)
    return output.start_logits, output.end_logits


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


_FEEDS: dict[str, Task] = {
    "causal": _words(_call_causal, next_token_loss),
    "masked": _words(_call_tokens, class_loss),
    "tokens": _words(_call_tokens, class_loss, "num_labels"),
    "spans": _spans,
    "sequence": _classes,
    "vision": _classes,
    "pixels": _pixels,
    "seq2seq": _seq2seq,
    "pairs": _pairs,
    IMAGE_AND_TEXT: _image_and_text,
}
