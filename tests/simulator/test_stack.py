"""The stack file that ships, and what happens to one that is wrong."""

from __future__ import annotations

import pytest

from profiles.document import read_document
from profiles.errors import DocumentError, UnknownNameError
from simulator.stack import STACK_FOLDER, STACK_SCHEMA, Stack, load_stack


def test_bytes_per_parameter_of_mixed_precision_adam_are_the_published_ones():
    # ZeRO (arXiv 1910.02054, section 3.1): 2 + 2 + 12 bytes for fp16 with fp32 Adam. Here the
    # gradients are fp32, 2 more: 4 (master) + 2 (working copy) + 4 + 8.
    stack = load_stack()
    sizes = stack.bytes_of("bf16")
    states = stack.optimizer_bytes.of("adamw")
    total = sizes.parameter_bytes + sizes.working_copy_bytes + sizes.gradient_bytes + states
    assert total == 18
    whole = stack.bytes_of("fp32")
    assert whole.parameter_bytes + whole.gradient_bytes + states == 16
    assert sizes.compute_bytes == 2
    assert whole.compute_bytes == 4


def test_every_shipped_stack_reads():
    for path in STACK_FOLDER.glob("*.toml"):
        assert load_stack(path.stem).name == path.stem


def test_unknown_stack_and_wrong_file(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'torch'"):
        load_stack("torhc")
    text = (STACK_FOLDER / "torch.toml").read_text(encoding="utf-8")
    wrong = tmp_path / "mine.toml"
    wrong.write_text(text.replace("parameter_bytes", "parameter_byte", 1), encoding="utf-8")
    with pytest.raises(UnknownNameError, match="Did you mean 'parameter_bytes'"):
        read_document(wrong, Stack, schema=STACK_SCHEMA)
    wrong.write_text(text.replace("adamw = 8", 'adamw = "8"', 1), encoding="utf-8")
    with pytest.raises(DocumentError, match="optimizer_bytes"):
        read_document(wrong, Stack, schema=STACK_SCHEMA)
