"""Low-bit weights and optimizers: names of the options, and bytes of their states.

Values are stored in blocks, each with a scale:

    b + s / B   bytes per value: b of the value, s of a scale, B values to a block

- `nf4`: 4-bit NormalFloat of QLoRA (Dettmers et al., arXiv 2305.14314, section 3): B = 64, the fp32
  scales themselves in 8 bits in blocks of 256 (double quantization), 0.127 bits per weight.
- `int8`: a block is a row of the weight, with one fp32 scale (LLM.int8, arXiv 2208.07339, section
  3.1; bitsandbytes, functional.py, int8_vectorwise_quant).
- `adamw8bit`: both moments in 8 bits, B = 256 with an fp32 scale (Dettmers et al., arXiv
  2110.02861, section 2; bitsandbytes, optim/optimizer.py; torchao, optim/subclass_8bit.py).
- `adamw4bit`: both in 4 bits, B = 128 (Li et al., arXiv 2309.01507, section 4; torchao,
  optim/subclass_4bit.py).
- `muon`: one fp32 momentum for weights of matrices, AdamW's two moments for all others (Liu et al.,
  arXiv 2502.16982, section 2.2).

Both libraries keep fp32 states for tensors below 4,096 values. This exception is not modeled.
"""

from __future__ import annotations

from profiles.errors import UnknownNameError

FROZEN_TYPES = ("nf4", "int8")
MUON = "muon"
OPTIMIZERS = ("adamw", "adamw8bit", "adamw4bit", MUON)
USUAL_OPTIMIZER = OPTIMIZERS[0]

_SCALE_BYTES = 4.0
# 4 bits, an 8-bit scale per 64 values, an fp32 scale per 256 such scales.
_NF4_BYTES = 0.5 + 1.0 / 64 + _SCALE_BYTES / (64 * 256)
# Both of Adam's moments.
_MOMENTS_BYTES = {
    "adamw": 2 * 4.0,
    "adamw8bit": 2 * (1.0 + _SCALE_BYTES / 256),
    "adamw4bit": 2 * (0.5 + _SCALE_BYTES / 128),
    MUON: 2 * 4.0,
}
# Of weights that are matrices.
_MATRIX_BYTES = {**_MOMENTS_BYTES, MUON: 4.0}


def frozen_bytes(frozen_type: str, row: int) -> float:
    """Bytes per weight of a frozen linear layer with `row` inputs, including scales.

    Raises UnknownNameError.

    >>> round(8 * frozen_bytes("nf4", 4096), 3)
    4.127
    """
    if frozen_type not in FROZEN_TYPES:
        raise UnknownNameError("type of frozen weights", frozen_type, FROZEN_TYPES)
    return _NF4_BYTES if frozen_type == "nf4" else 1.0 + _SCALE_BYTES / row


def moments_bytes(optimizer: str) -> float:
    """Bytes of the moments per trained parameter; with Muon, per parameter outside of matrices.

    Raises UnknownNameError.

    >>> moments_bytes("adamw8bit")
    2.03125
    """
    if optimizer not in _MOMENTS_BYTES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS, where="--optimizer")
    return _MOMENTS_BYTES[optimizer]


def saved_moments_bytes(optimizer: str) -> float:
    """Bytes per trained parameter saved relative to fp32 moments."""
    return moments_bytes(USUAL_OPTIMIZER) - moments_bytes(optimizer)


def saved_in_matrices_bytes(optimizer: str) -> float:
    """Bytes saved in addition per trained parameter that is in a matrix.

    >>> saved_in_matrices_bytes("muon"), saved_in_matrices_bytes("adamw8bit")
    (4.0, 0.0)
    """
    return _MOMENTS_BYTES[optimizer] - _MATRIX_BYTES[optimizer]
