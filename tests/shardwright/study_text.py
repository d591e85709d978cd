"""A small study of plans and sizes, as the tests of `sweep` write it."""

from __future__ import annotations

from pathlib import Path

STUDY = """schema = "shardwright/questions@1"

[[grids]]
models = ["llama-3.1-8b", "gpt2"]
clusters = ["1x8xh100-sxm", "1xl40s"]
global_batches = [32, 64]
sequence_lengths = [1024]
stacks = ["megatron-core", "torchtitan"]
prices = ["on-demand", 2.5]
pins = { cp = "1", tp = "1,2", micro_batch = "1" }

[[sizes]]
models = ["gpt2"]
on = ["h100-sxm"]
tokens = ["10B"]
deadlines = ["10d"]
nodes = ["1..4"]
global_batches = [64]
sequence_lengths = [1024]
stacks = ["torchtitan"]
prices = ["on-demand", 2.0]
"""


def study_file(folder: Path) -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY)
    return path
