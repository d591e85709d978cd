"""What of a convolution decides its kernel, beside the product that it equals."""

from __future__ import annotations

from dataclasses import dataclass

CHANNELS_LAST = " channels-last"
"""End of the kinds of convolutions whose input's channels lie next to each other in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """A convolution's kernel.

    dims    spatial dimensions;  taps  elements of a kernel's window;  stride  the largest
    input_gradient  False in a backward that makes the weight's gradient alone
    images  samples of the call. On a CPU torch has another kernel for the volume of one, 3 to 5
            times as slow (32 channels on 24^3, torch 2.13, 2026-11-22), and makes a pointwise
            convolution of fewer than 16 a product for each (aten/src/ATen/native/Convolution.cpp,
            use_mkldnn, of one thread): on 4 images of 2 x 2 pixels a tenth of the speed of 4 x 4
    channels_last  the layout of the input, or of the weight: the backward of a depthwise 7 x 7 in
            float32 then takes a quarter to two thirds as long on a CPU, a pointwise one in bfloat16
            half (15 shapes, one core, torch 2.13, 2026-11-23); dense ones differed by a third at
            most, either way, and are taken as one
    """

    groups: int
    dims: int
    taps: int
    stride: int
    transposed: bool
    input_gradient: bool = True
    images: int = 1
    channels_last: bool = False

    def kind(self, patch: int) -> str:
        """Convolutions that one kind of kernel computes; `patch` is the product's k. A
        line is an image one pixel high to oneDNN; that lines and volumes are read beside images was
        found better on a CPU of two cores (simulator/traced/point_maps.conv_axes) and not measured
        on any other device."""
        layout = CHANNELS_LAST if self.channels_last else ""
        if self.groups > 1:
            return f"depthwise{layout}" if patch == self.taps else "grouped"
        if self.transposed:
            return "transposed"
        if self.taps == 1 and self.stride == 1 and self.images < 16:
            return f"pointwise{layout}"
        return "volume alone" if self.dims == 3 and self.images == 1 else "dense"
