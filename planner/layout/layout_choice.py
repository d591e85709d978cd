"""A refined layout as it is shown: with intervals, money, energy, and why it is not first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.layout.layout_answer import LayoutChoice, LayoutPrediction
from planner.layout.layout_price import tokens_per_s
from planner.layout.prices import LayoutPrices
from planner.layout.refined_layout import PricedLayout
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from profiles.units import format_time
from simulator.goodput.lasting import delivered, reliability
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.training_run.fit.interval import step_interval, widened
from simulator.training_run.fit.logged_source import Calibration, calibrated_interval
from simulator.training_run.fit.memory_interval import memory_interval, out_of_memory_probability
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, shipped_coefficients
from simulator.values.prediction import Interval


def choice_of(
    layout: PricedLayout,
    best: PricedLayout | None,
    cluster: Cluster,
    price: Callable[[Cluster], Sourced | None],
    coefficients: CoefficientFile | None = None,
    calibration: Calibration | None = None,
    inputs: ReliabilityInputs = DEFAULT,
) -> LayoutChoice:
    """The layout with what it costs; `coefficients` are those that it was priced with, the shipped
    ones if None, and `calibration` what changed them."""
    run = layout.run
    step = _step(layout, coefficients or shipped_coefficients(), calibration)
    per_s = tokens_per_s(run, step)
    peak = get_device(run.device).peak(run.precision).value
    mfu = per_s.scaled(
        model_flop_per_token(run.model, run.seq_len) / (run.degrees.num_devices * peak)
    )
    usd_per_hour = price(cluster)
    usd = usd_per_million_tokens(per_s, cluster.num_devices, usd_per_hour)
    kwh = kwh_per_million_tokens(per_s, cluster, power_mfu(run, mfu.value, cluster.num_devices))
    lasting = reliability(run.model.parameters, run.degrees.num_devices, run.device, inputs)
    return LayoutChoice(
        run=run,
        prediction=LayoutPrediction(
            step_time_s=step,
            parts=layout.parts,
            mfu=mfu.value,
            peak_memory_bytes=layout.memory.needed_bytes,
            out_of_memory_probability=out_of_memory_probability(
                run, layout.memory.needed_bytes, get_device(run.device).usable_bytes
            ),
            price_usd_per_hour=usd_per_hour,
            usd_per_million_tokens=usd,
            kwh_per_million_tokens=kwh,
            tokens_per_s=per_s,
            mfu_range=mfu,
            peak_memory_range=memory_interval(run, layout.memory.needed_bytes),
            reliability=lasting,
            usd_per_million_tokens_delivered=delivered(usd, lasting.goodput),
            kwh_per_million_tokens_delivered=delivered(kwh, lasting.goodput),
        ),
        why_not_first="" if best is None else why_not_first(layout, best),
        idle_devices=cluster.num_devices - run.degrees.num_devices,
    )


def power_mfu(run: TrainingRun, mfu: float, num_devices: int) -> float:
    """MFU of the 16-bit peak over all devices, also those that stay idle: what power follows."""
    device = get_device(run.device)
    low_precision = device.peak(run.precision).value / device.peak_or_twins("bfloat16").value
    return mfu * max(1.0, low_precision) * run.degrees.num_devices / num_devices


def _step(
    layout: PricedLayout, coefficients: CoefficientFile, calibration: Calibration | None
) -> Interval:
    """The interval of a step as wide as its coefficients are uncertain, or as the calibration's own
    runs lie; wider on either side by half of the seconds that no fitted run had."""
    run, time_s = layout.run, layout.step_time_s
    found = (
        step_interval(run, time_s)
        if calibration is None
        else calibrated_interval(run, time_s, calibration)
    )
    published = run.as_published()
    if published == run:
        return found
    prices = LayoutPrices(run, coefficients)
    usual_s = float(prices.exact_parts(published).total_s[0])
    return widened(found, time_s - usual_s)


def model_flop_per_token(model: Transformer, seq_len: int) -> float:
    """Forward and backward, without recomputation: PaLM, arXiv 2204.02311, appendix B, with the
    experts that a token visits and without the table of embeddings; in a window the keys that it
    holds, and no arithmetic of a state."""
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    used = model.parameters - idle - model.hidden_size * model.learned_positions
    if not model.tied_embeddings:
        used -= model.hidden_size * model.vocab_size
    near = model.window_layers * min(model.window, seq_len)
    keys = (model.attention_count - model.window_layers) * seq_len + near
    return float(6 * used + 12 * model.num_heads * model.head_size * keys)


_PART_WORDS = {
    "compute_s": "compute",
    "tensor_s": "tensor-parallel messages",
    "expert_s": "all-to-all of experts",
    "context_s": "context-parallel messages",
    "gather_s": "gathering of parameters",
    "cut_s": "sends between stages",
    "stall_s": "stalled messages",
    "bubble_s": "bubble",
    "reduce_s": "exchange of gradients",
    "optimizer_s": "optimizer",
    "host_s": "host memory",
    "overhead_s": "overhead",
}


def part_words(name: str) -> str:
    """What a part of the step is called."""
    return _PART_WORDS.get(name, name.removesuffix("_s").replace("_", " "))


def why_not_first(layout: PricedLayout, best: PricedLayout) -> str:
    """`2.1 % slower: bubble +1.3 s`."""
    return slower_by(
        dict(layout.parts), dict(best.parts), layout.step_time_s / best.step_time_s - 1
    )


def slower_by(mine: Mapping[str, float], first: Mapping[str, float], slower: float) -> str:
    """The share by which a step is slower, and the part that differs most; seconds by part."""
    name = max(mine, key=lambda part: mine[part] - first[part])
    if slower < 5e-4 or mine[name] <= first[name]:
        return f"{slower:.1%} slower"
    return f"{slower:.1%} slower: {part_words(name)} +{format_time(mine[name] - first[name])}"
