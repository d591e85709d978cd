"""Searches over layouts: questions of 1,024 to 100,352 devices proven, and configurations priced.

The rate of pricing is held as a ratio to pricing the same layouts one at a time, in the same
process. Calculon, on the machine of the study that the targets come from, priced 107 a second and
core (1,341 without its log).
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np

from bench.best_of import best_of
from planner.axes import Axes
from planner.layout.layout_answer import LayoutFile, layout_title
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion, context_of
from planner.layout.prices import LayoutPrices, legal_layouts
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import resolve_model
from simulator.training_run.run.training_run import with_settings
from simulator.training_run.step.coefficients import shipped_coefficients

QUESTIONS = (
    ("gpt3-175b", "128x8xa100-sxm-80gb", 1536, 2048),
    ("gpt3-175b", "512x8xa100-sxm-80gb", 6144, 2048),
    ("gpt3-175b", "2048x8xa100-sxm-80gb", 16384, 2048),
    ("megatron-1t", "128x8xa100-sxm-80gb", 1024, 2048),
    ("megatron-1t", "512x8xa100-sxm-80gb", 4096, 2048),
    ("megatron-1t", "2048x8xa100-sxm-80gb", 16384, 2048),
    ("llama-3.1-405b", "128x8xh100-sxm", 1024, 8192),
    ("llama-3.1-405b", "512x8xh100-sxm", 2048, 8192),
    ("llama-3.1-405b", "2048x8xh100-sxm", 2048, 8192),
    ("deepseek-v3", "256x8xh800-sxm", 15360, 4096),
    ("moe-2t", "12544x8xh100-sxm", 100352, 8192),
)
# Layouts priced at once over layouts priced one by one, per CPU second.
LEAST_PRICING_RATIO = 200.0
_COPIES = 1 << 20

# A mixture of experts of two trillion parameters, made up for the size of its space.
_MOE_2T = Transformer(
    num_layers=100,
    hidden_size=8192,
    ffn_size=0,
    num_heads=64,
    num_kv_heads=8,
    head_size=128,
    vocab_size=128256,
    gated=True,
    tied_embeddings=False,
    num_experts=256,
    top_k=8,
    expert_size=3072,
)


def run() -> int:
    """Prints the table; 1 where a question is not proven or the ratio does not hold."""
    bad = 0
    print("layouts of megatron-core, every axis free: proven optimum")
    for asked in QUESTIONS:
        start, cpu = time.monotonic(), time.process_time()
        answer = solve(question(*asked))
        spent, worked = time.monotonic() - start, time.process_time() - cpu
        bad += answer.status != "optimal"
        print(f"  {asked[0]:15} {asked[1]:22} {_line(answer)} {spent:5.1f} s ({worked:.1f} s CPU)")
    print(f"  most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    return int(bool(bad) | pricing())


def _line(answer: LayoutFile) -> str:
    if answer.chosen is None:
        return "nothing fits"
    step = answer.chosen.prediction.step_time_s.value
    return (
        f"{answer.status:8} gap {answer.gap:.0%} step {step:8.2f} s  {answer.considered:7,} "
        f"considered {answer.too_big:7,} too big {answer.pruned:6,} pruned {answer.refined:4} "
        f"refined  {layout_title(answer.chosen.run)}"
    )


def question(name: str, on: str, batch: int, seq: int) -> LayoutQuestion:
    """One question, every axis free."""
    spec = None if name == "moe-2t" else resolve_model(name)
    return LayoutQuestion(
        name=name,
        model=_MOE_2T if spec is None else figures_of_config(spec.config, name),
        cluster=get_cluster(on),
        stack="megatron-core",
        global_batch=batch,
        seq_len=seq,
        precision="bf16",
        space=Axes(),
    )


def solve(asked: LayoutQuestion) -> LayoutFile:
    """Its answer, without prices."""
    return plan_layout(asked, clock=time.monotonic)


def pricing() -> int:
    """Configurations priced per CPU second, beside one at a time; 1 where the ratio is less."""
    base, context = context_of(question("llama-3.1-405b", "512x8xh100-sxm", 2048, 8192))
    layouts = legal_layouts(Axes(), replace(context, may_idle=False))
    prices = LayoutPrices(base, shipped_coefficients())
    # As many as a search of a large space prices: what layouts share is computed once in both.
    many = layouts.rows(np.arange(_COPIES) % len(layouts))
    at_once_s, times = best_of(lambda: prices.step_times(many), 3)
    few = np.linspace(0, len(layouts) - 1, 50).astype(int).tolist()
    plain = [with_settings(layouts.run(base, i), {"schedule": "1f1b", "vpp": 1}) for i in few]
    single_s, _ = best_of(lambda: [prices.exact_parts(run) for run in plain], 3)
    ratio = (len(times) / at_once_s) / (len(plain) / single_s)
    print(
        f"  pricing: {len(times) / at_once_s:,.0f} layouts a CPU second at once, "
        f"{len(plain) / single_s:,.0f} one by one, ratio {ratio:.0f} "
        f"(must hold {LEAST_PRICING_RATIO:.0f})"
    )
    return int(ratio < LEAST_PRICING_RATIO)
