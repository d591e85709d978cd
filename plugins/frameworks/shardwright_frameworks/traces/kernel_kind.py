"""The kind of work of a device's kernel, from its name."""

from __future__ import annotations

import functools
import re

KINDS = ("matmul", "attention", "other", "communication", "copy")
"""Kinds of kernels: `other` computes; `copy` moves bytes within a device, or to or from its
host."""

# Prefixes and parts of names as vendors' libraries give them: NCCL, RCCL, oneCCL, HCCL, MSCCL++,
# NVSHMEM and DeepEP; FlashAttention, cuDNN, CK and Triton; cuBLAS, CUTLASS, hipBLASLt (Tensile).
_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|mscclpp|oneccl|nvshmem|deep_ep|allreduce_kernel|all_reduce_kernel|"
    r"one_shot_all_reduce|two_shot_all_reduce|multimem_all",
    re.IGNORECASE,
)
_ATTENTION = re.compile(
    r"flash|fmha|attention|sdpa|attn_(?:fwd|bwd)|_fwd_kernel_.*attn|ring_attn|mha_(?:fwd|bwd)",
    re.IGNORECASE,
)
_MATMUL = re.compile(
    r"gemm|nvjet|cutlass|cublas|xmma|wgmma|matmul|Cijk_|_mm_|tensorop|gemv|splitk", re.IGNORECASE
)
_COPY = re.compile(r"^(?:\[?CUDA )?mem(?:cpy|set)", re.IGNORECASE)
_OPERATION = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll\w*|SendRecv|Broadcast|Reduce)", re.IGNORECASE
)


@functools.lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """The kind of the kernel with this name.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), kind_of("nvjet_tst_128x256_64x4")
    ('communication', 'matmul')
    """
    if _COMMUNICATION.search(name):
        return "communication"
    if _COPY.search(name):
        return "copy"
    if _ATTENTION.search(name):
        return "attention"
    return "matmul" if _MATMUL.search(name) else "other"


@functools.lru_cache(maxsize=65536)
def operation_of(name: str) -> str:
    """The collective of a communication kernel, `other` if its name contains none.

    >>> operation_of("ncclKernel_ReduceScatter_RING_LL_Sum_half")
    'reduce_scatter'
    """
    found = _OPERATION.search(name)
    if found is None:
        return "other"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
    return {"all_to_allv": "all_to_all", "alltoall": "all_to_all"}.get(words, words)
