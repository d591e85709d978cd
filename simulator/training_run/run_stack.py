"""`RunStack`: what a training framework runs and keeps, for runs that are described by figures."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import UnknownNameError

RUN_STACK_SCHEMA = "shardwright/run-stack@1"
RUN_STACK_FOLDER = Path(__file__).parents[2] / "profiles" / "data" / "run_stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStack:
    """A framework of a generation, as data; every file says where each entry is read off.

    frameworks       beginnings of the framework names that mean this stack, lower case
    attention        `fused` (the best kernel of the device), `flash-2` (FlashAttention-2, which
                     uses nothing newer than Ampere's) or `unfused` (scores in memory)
    vocabulary_multiple   the vocabulary is padded to a multiple of this times tp; 1 for none
    norm_passes, activation_passes   how often the elementwise work of a layer reads or writes a
                     token's activations, forward, in units of the hidden size (norms, residuals,
                     dropout) and of the feed-forward's inner width; backward does the same again
                     with the gradients (`backward_passes` times as many)
    loss_bytes       bytes moved per logit by the cross-entropy, forward and backward
    kernels_forward, kernels_backward   kernels that one layer launches in each pass
    expert_kernels   launched per local expert by a forward matmul of experts; the backward has two
                     such matmuls for each. 0 where one kernel runs all experts
    block_scale_kernels   beside, per operand with a scale per block of elements (mxfp8, nvfp4):
                     its cast and the reordering of its scales
    weight_bytes, gradient_bytes   per parameter, as computed with and as summed
    optimizer_traffic_bytes   read and written per parameter by one optimizer step
    accumulation_bytes   read and written per parameter to add a micro-batch's gradient to its sum,
                     beyond writing a 16-bit gradient
    overlaps_data_parallel, overlaps_tensor_parallel, overlaps_pipeline   what hides under compute
    overlaps_host    transfers to and from host memory go on beside computing
    splits_sends     tensor-parallel ranks send a share each between stages and gather it there,
                     with or without sequence parallelism
    blocking_messages   the host waits for every message between stages: sizes travel ahead and are
                     read on the host before the tensor is asked for (simulator/training_run/
                     message_stalls.py says what that costs)
    usual_zero_stage, usual_sequence_parallel   what it does where a source is silent
    gathered_in_pipelines   ZeRO 3 keeps a stage's parameters and gradients whole beside a pipeline
    microbatch_per_stage   a rank's sequences are split into as many micro-batches as the pipeline
                     has stages, where a source is silent
    usual_chunks     chunks per rank of an interleaved pipeline, where a source is silent; 0 for the
                     fewest that split the layers evenly
    selective        the kind of `TrainingRun.recompute` that its "selective" means
    compiled_name    the stack that it is under torch.compile; "" where that is not told apart
    """

    name: str
    source: str
    date: str
    frameworks: tuple[str, ...]
    attention: str
    vocabulary_multiple: int
    norm_passes: float
    activation_passes: float
    backward_passes: float
    loss_bytes: float
    kernels_forward: float
    kernels_backward: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_traffic_bytes: float
    accumulation_bytes: float
    overlaps_data_parallel: bool
    overlaps_tensor_parallel: bool
    overlaps_pipeline: bool
    splits_sends: bool = False
    blocking_messages: bool = False
    overlaps_host: bool = False
    usual_zero_stage: int = 0
    usual_sequence_parallel: bool = False
    gathered_in_pipelines: bool = False
    microbatch_per_stage: bool = False
    usual_chunks: int = 0
    selective: str = "selective"
    compiled_name: str = ""
    expert_kernels: float = 1.0
    block_scale_kernels: float = 0.0


def run_stack_names() -> tuple[str, ...]:
    """All stacks that there are files of."""
    return tuple(sorted(path.stem for path in RUN_STACK_FOLDER.glob("*.toml")))


@functools.cache
def load_run_stack(name: str) -> RunStack:
    """The stack of a file in profiles/data/run_stacks; raises UnknownNameError."""
    if name not in run_stack_names():
        raise UnknownNameError("run stack", name, run_stack_names())
    return read_document(RUN_STACK_FOLDER / f"{name}.toml", RunStack, schema=RUN_STACK_SCHEMA)


def stack_of_framework(framework: str) -> str:
    """The stack that a framework's name means, or "" for none: the longest matching beginning.

    A name with "compile" in it means the compiled stack of one that tells them apart.

    >>> stack_of_framework("Megatron-Bridge 26.04")
    'megatron-bridge'
    >>> stack_of_framework("torchtitan (FSDP2, torch.compile)")
    'torchtitan-compiled'
    """
    asked = framework.strip().lower()
    found = [
        (len(start), name)
        for name in run_stack_names()
        for start in load_run_stack(name).frameworks
        if asked.startswith(start)
    ]
    name = max(found)[1] if found else ""
    return (load_run_stack(name).compiled_name or name) if name and "compile" in asked else name
