"""The counted quantities of described runs: layers, links, bytes of messages and optimizer."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from profiles.hardware.catalogue.catalog import get_device, get_link
from profiles.hardware.kernels.collective_curve import load_curves
from profiles.hardware.kernels.gemm_surface import load_surface
from shardwright.runs.network_text import network_of
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import longest_rank_s, simulate
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.run_links import links_of
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.idle_share import pass_seconds
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.stage_share import stage_split
from tests.simulator.described_runs import (
    DEEPSEEK_V3,
    GPT_RUN,
    LLAMA_8B,
    LLAMA_RUN,
    MIXTRAL,
    changed,
    training_runs,
)

# Datasheets: NVLink 4 450 GB/s and NVLink 3 300 GB/s one way (times what collectives reach of it),
# one 400 or 200 Gb/s card per device.
IB = get_link("ib-ndr").efficiency.value
MESSAGE = get_link("ib-ndr").message_efficiency.value
NVLINK4, NDR = 450e9 * get_link("nvlink4").efficiency.value, IB * 50e9
NVLINK3, HDR = 300e9 * get_link("nvlink3").efficiency.value, IB * 25e9
H100_BYTES_PER_S = 3350e9
MEGATRON = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)
TWO_NODES = changed(MEGATRON, dp=16)


def one(run: TrainingRun, name: str) -> float:
    return float(getattr(features([run]), name)[0])


def measured_s(device: str, operation: str, ranks: int, bus_bytes: float) -> float:
    """What nccl-tests say of one collective inside a node."""
    curves = load_curves(device)
    assert curves is not None
    return curves.time_s(operation, ranks, bus_bytes)


def on_h100(operation: str, ranks: int, bus_bytes: float) -> float:
    return measured_s("h100-sxm-80gb", operation, ranks, bus_bytes)


def of_llama_layer(tp: int = 1) -> float:
    """Weights of a layer of Llama 3 8B: 2 h^2 + 2 x 1024 h of attention, 3 x 14336 h, 2 h."""
    h = 4096
    return (2 * h * h + 2 * h * 1024 + 3 * h * 14336 + 2 * h) / tp


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (96, 8, (12, 12)),
        (30, 1, (30, 30)),
        (22, 8, (3, 2)),  # (22 + embedding + head) / 8 = 3, of which the last stage has the head
        (30, 4, (8, 7)),
        (25, 4, (7, 6)),
        (3, 8, (1, 0)),
    ],
)
def test_layers_of_the_fullest_and_of_the_last_stage(
    layers: int, pp: int, expected: tuple[float, float]
) -> None:
    run = changed(GPT_RUN, model=replace(GPT_RUN.model, num_layers=layers), pp=pp)
    assert stage_layers(run) == expected


def test_links_are_the_datasheets_at_what_collectives_reach() -> None:
    found = links_of(GPT_RUN)
    assert (found.inner_bytes_per_s, found.outer_bytes_per_s) == (NVLINK3, HDR)
    assert found.node_devices == 8
    assert links_of(LLAMA_RUN).outer_bytes_per_s == NDR
    # Four cards for eight devices: half a card each.
    halved = replace(
        LLAMA_RUN, network=network_of("4x400Gb/s NDR IB per node", LLAMA_RUN.device, 8)
    )
    assert links_of(halved).outer_bytes_per_s == NDR / 2


# ---- Data parallelism


def test_zero_3_gathers_twice_and_reduces_once() -> None:
    """Per layer and micro-batch 7/8 of 2 bytes twice (weights, forward and backward) and of 4 bytes
    (gradients) per weight over NVLink."""
    expected = 2 * on_h100("all_gather", 8, 7 / 8 * 2 * of_llama_layer())
    expected += on_h100("reduce_scatter", 8, 7 / 8 * 4 * of_llama_layer())
    assert one(LLAMA_RUN, "gather_inner") == pytest.approx(expected)
    assert one(LLAMA_RUN, "gather_steps") == 0.0  # the measured times hold their latency
    for name in ("gather_outer", "reduce_inner", "reduce_outer", "reduce_steps"):
        assert one(LLAMA_RUN, name) == 0.0
    # On two nodes 15/16 of it leaves over a node's eight cards.
    wide = changed(LLAMA_RUN, dp=16)
    moved = 15 / 16 * 8 * of_llama_layer()
    assert one(wide, "gather_outer") == pytest.approx(moved / (8 * NDR))


@pytest.mark.parametrize(
    ("zero", "pp", "gathers", "reduces"), [(3, 1, 2, 1), (2, 1, 1, 1), (3, 2, 2, 0), (2, 2, 0, 0)]
)
def test_our_executor_gathers_per_micro_batch(
    zero: int, pp: int, gathers: int, reduces: int
) -> None:
    """In a pipeline it reduces once per step."""
    stack = load_framework("torch")
    run = changed(LLAMA_RUN, stack="torch", zero_stage=zero, dp=8, pp=pp, schedule="1f1b")
    layer = 7 / 8 * of_llama_layer()
    expected = gathers * on_h100("all_gather", 8, stack.sent_weight_bytes * layer)
    expected += reduces * on_h100("reduce_scatter", 8, stack.summed_gradient_bytes * layer)
    assert one(run, "gather_inner") == pytest.approx(expected)
    assert (one(run, "reduce_inner") > 0) is (not reduces)


def test_gradients_and_weights_of_a_step() -> None:
    """ZeRO-1: 4 bytes of gradients reduced and 2 of weights gathered; without it, an all-reduce
    of 4 (2 in fp16). Llama 3 8B has two tables of 128256 x 4096, padded to a multiple of 128."""
    tables = 2 * 128256 * 4096
    weights = 32 * of_llama_layer() + tables
    expected = on_h100("reduce_scatter", 8, 7 / 8 * 4 * weights)
    expected += on_h100("all_gather", 8, 7 / 8 * 2 * weights)
    assert one(MEGATRON, "reduce_inner") == pytest.approx(expected)
    whole = replace(MEGATRON, zero_stage=0)
    expected = on_h100("all_reduce", 8, 2 * 7 / 8 * 4 * weights)
    assert one(whole, "reduce_inner") == pytest.approx(expected)
    half = replace(whole, precision="fp16")
    expected = on_h100("all_reduce", 8, 2 * 7 / 8 * 2 * weights)
    assert one(half, "reduce_inner") == pytest.approx(expected)
    assert one(MEGATRON, "gather_inner") == 0.0
    # Tensor-parallel ranks share the weights, padded to 126 x 8 x 128 tokens; 8 pairs of
    # data-parallel ranks lie 8 apart.
    shared = changed(TWO_NODES, dp=2, tp=8)
    weights = 32 * of_llama_layer() + 2 * 129024 * 4096
    assert one(shared, "reduce_outer") == pytest.approx(1 / 2 * 6 * weights / 8 / NDR)
    assert one(changed(MEGATRON, dp=1), "reduce_inner") == 0.0


def test_the_optimizer_streams_its_bytes() -> None:
    """36 bytes per weight at 3.35 TB/s, an eighth each with ZeRO-1."""
    weights = 32 * of_llama_layer() + 2 * 128256 * 4096
    whole = replace(MEGATRON, zero_stage=0)
    assert one(whole, "optimizer_s") == pytest.approx(36 * weights / H100_BYTES_PER_S)
    assert one(MEGATRON, "optimizer_s") == pytest.approx(36 * weights / 8 / H100_BYTES_PER_S)
    # A pipeline rank holds its layers and one table.
    stage = changed(whole, pp=2, dp=4, schedule="1f1b")
    held = 16 * of_llama_layer() + 128256 * 4096
    assert one(stage, "optimizer_s") == pytest.approx(36 * held / H100_BYTES_PER_S)
    # Sums of gradients: the matmul adds them, 2.5 bytes per weight and micro-batch show.
    assert one(MEGATRON, "accumulation_s") == pytest.approx(
        2.5 * of_llama_layer() / H100_BYTES_PER_S
    )


def test_lora_trains_no_weights() -> None:
    lora = replace(MEGATRON, lora=True)
    for name in ("optimizer_s", "accumulation_s", "reduce_inner", "reduce_outer", "reduce_steps"):
        assert one(lora, name) == 0.0
    # The products for the weights fall away, half of the backward at the peak.
    assert one(lora, "peak_backward") == pytest.approx(0.5 * one(MEGATRON, "peak_backward"))
    assert one(lora, "matmul_backward") < 0.7 * one(MEGATRON, "matmul_backward")
    for name in ("matmul_forward", "attention_backward", "score_forward"):
        assert one(lora, name) == one(MEGATRON, name)


# ---- Model parallelism


def test_two_all_reduces_of_the_hidden_state() -> None:
    """Two of b s h 2 bytes = 2048 x 12288 x 2, as measured on eight A100; on V100, which were not
    measured, over six links at what they reach, and latency steps."""
    size = 2048 * 12288 * 2
    each = measured_s("a100-sxm-80gb", "all_reduce", 8, 2 * 7 / 8 * size)
    assert one(GPT_RUN, "tensor_inner") == pytest.approx(2 * each)
    assert one(GPT_RUN, "tensor_inner_steps") == 0.0
    old = replace(GPT_RUN, device="v100-sxm2-16gb")
    rate = 150e9 * get_link("nvlink2").efficiency.value
    assert one(old, "tensor_inner") == pytest.approx(2 * 2 * 7 / 8 * size / rate)
    # A ring's 2 x 7 hops of its latency, in steps of 12 us.
    hops_s = 2 * 14 * get_link("nvlink2").latency_s.value
    assert one(old, "tensor_inner_steps") == pytest.approx(hops_s / 12e-6)
    assert one(GPT_RUN, "tensor_outer_steps") == 0.0
    assert one(changed(GPT_RUN, tp=1, dp=8), "tensor_inner") == 0.0
    across = changed(GPT_RUN, tp=16, pp=4)
    assert one(across, "tensor_outer") == pytest.approx(2 * 2 * 15 / 16 * size / (8 * HDR))
    # Over two nodes a ring of each all-reduce passes from node to node twice.
    steps = 2 * 2 * get_link("ib-hdr").latency_s.value / 12e-6
    assert one(across, "tensor_outer_steps") == pytest.approx(steps)


def test_sends_between_stages() -> None:
    """b s h 2 bytes by every tensor-parallel rank, or a tp-th where the sequence or the send is
    split (Megatron-LM of 2021 splits every send, Megatron-Core none)."""
    size = 2048 * 12288 * 2
    assert one(GPT_RUN, "cut_outer") == pytest.approx(size / 8 / HDR * IB / MESSAGE)
    split = replace(GPT_RUN, stack="megatron-core", sequence_parallel=True)
    assert one(split, "cut_outer") == pytest.approx(size / 8 / HDR * IB / MESSAGE)
    assert one(replace(GPT_RUN, stack="megatron-core"), "cut_outer") == pytest.approx(
        size / HDR * IB / MESSAGE
    )
    assert one(GPT_RUN, "cut_steps") == 1
    inside = changed(GPT_RUN, tp=2, pp=4)
    expected = measured_s("a100-sxm-80gb", "send", 2, size / 2)
    assert one(inside, "cut_inner") == pytest.approx(expected)
    assert one(inside, "cut_outer") == 0.0
    assert one(changed(GPT_RUN, pp=1, dp=8, schedule="none"), "cut_outer") == 0.0


def test_scores_are_one_batched_call() -> None:
    """12 heads' products of 2048 x 128 x 2048 and of 2048 x 2048 x 128 run as fast as one each with
    12 times the rows, faster than 12 calls."""
    surface = load_surface("a100-sxm-80gb")

    def seconds(m: float, n: float, k: float) -> float:
        sizes = (np.asarray([size]) for size in (m, n, k))
        return float(surface.time_s("bfloat16", *sizes, casts=False)[0])

    assert GPT_RUN.model.num_heads // GPT_RUN.degrees.tp == 12
    assert GPT_RUN.micro_batch == 1
    batched = seconds(12 * 2048, 2048, 128) + seconds(12 * 2048, 128, 2048)
    apart = 12 * (seconds(2048, 2048, 128) + seconds(2048, 128, 2048))
    assert one(GPT_RUN, "attention_forward") == pytest.approx(batched, rel=0.01)
    assert batched < apart


def test_sequence_parallelism_gathers_and_scatters() -> None:
    """Two all-gathers and two reduce-scatters of 4096 x 4096 x 2 bytes over 8 ranks."""
    run = changed(MEGATRON, tp=8, dp=1, sequence_parallel=True)
    moved = 7 / 8 * run.tokens * 4096 * 2
    pair = on_h100("all_gather", 8, moved) + on_h100("reduce_scatter", 8, moved)
    assert one(run, "tensor_inner") == pytest.approx(2 * pair)
    whole = 2 * on_h100("all_reduce", 8, 2 * moved)
    assert one(replace(run, sequence_parallel=False), "tensor_inner") == pytest.approx(whole)


def test_the_heads_gradients_are_summed_each_micro_batch() -> None:
    """2.5 bytes per weight of the table show (Megatron-Core, whose matmul adds them)."""
    table = 128256 * 4096
    assert one(MEGATRON, "head_accumulation") == pytest.approx(2.5 * table / H100_BYTES_PER_S)
    assert one(replace(MEGATRON, lora=True), "head_accumulation") == 0.0


def test_score_products_of_ragged_heads_miss_the_tensor_cores() -> None:
    """Rows of 108 halves are 216 bytes, no multiple of 16: fp32's 19.5 TFLOP/s bound the two
    products of a layer, 2 x 2 s^2 of a head's width each. Rows of 104 are aligned."""
    wide = replace(GPT_RUN.model, hidden_size=13824, num_heads=128, num_kv_heads=128, head_size=108)
    ragged = replace(GPT_RUN, model=wide)
    flop = 2 * 2 * 2048**2 * 108 * 128 / 8
    assert one(ragged, "attention_forward") == pytest.approx(flop / 19.5e12)
    assert one(ragged, "attention_backward") == pytest.approx(2 * flop / 19.5e12)
    aligned = replace(ragged, model=replace(wide, hidden_size=13312, head_size=104))
    assert one(aligned, "attention_forward") < 0.5 * flop / 19.5e12
    # A fused kernel pads its heads.
    fused = replace(ragged, stack="megatron-core")
    assert one(fused, "attention_forward") < 0.5 * flop / 19.5e12


def test_experts_exchange_tokens_twice() -> None:
    """Mixtral over 8 ranks: 2 x 7/8 of 4096 tokens x top 2 x 4096 x 2 bytes over NVLink."""
    run = changed(MEGATRON, model=MIXTRAL, ep=8)
    routed = 4096 * 2 * 4096 * 2
    each = on_h100("all_to_all", 8, 7 / 8 * routed)
    assert one(run, "expert_inner") == pytest.approx(2 * each)
    assert one(run, "expert_outer") == 0.0
    assert one(changed(run, ep=1), "expert_inner") == 0.0
    # DeepSeek-V3: 58 of 61 layers have experts, each token goes to 8.
    deep = replace(run, model=DEEPSEEK_V3)
    routed = 4096 * 8 * 7168 * 2
    each = on_h100("all_to_all", 8, 7 / 8 * routed)
    assert one(deep, "expert_inner") == pytest.approx(58 / 61 * 2 * each)


def test_context_parallelism_gathers_keys_and_values() -> None:
    """3/4 of 4096 tokens x 2 x 8 heads x 128 x 2 bytes."""
    run = changed(MEGATRON, cp=4, dp=2)
    moved = 3 / 4 * 4096 * 2 * 1024 * 2
    assert one(run, "context_inner") == pytest.approx(on_h100("all_gather", 4, moved))
    assert one(MEGATRON, "context_inner") == 0.0
    # A tensor group's ranks have half of the heads each.
    halved = changed(MEGATRON, cp=4, dp=1, tp=2)
    assert one(halved, "context_inner") == pytest.approx(on_h100("all_gather", 4, moved / 2))


@pytest.mark.parametrize(
    ("recompute", "stack", "shares"),
    [
        ("none", "megatron-2021", (0, 0, 0)),
        ("full", "megatron-core", (1, 1, 1)),
        # Korthikanti et al., arXiv 2205.05198, section 5: the attention core; a fused kernel
        # does that anyhow.
        ("selective", "megatron-2021", (0, 1, 0)),
        ("selective", "megatron-core", (0, 0, 0)),
        ("minimal", "maxtext", (0, 0, 1)),
    ],
)
def test_what_is_computed_again(
    recompute: str, stack: str, shares: tuple[float, float, float]
) -> None:
    run = replace(MEGATRON, recompute=recompute, stack=stack)
    found = tuple(one(run, f"recomputed_{part}") for part in ("matmul", "attention", "pass"))
    assert found == shares


def test_dense_layers_among_expert_layers_are_averaged() -> None:
    """A model of which every other layer has experts lies half way between the two."""
    run = changed(MEGATRON, ep=8)
    none, half, every = (
        features([replace(run, model=replace(MIXTRAL, first_dense_layers=n))]) for n in (32, 16, 0)
    )
    for name in ("matmul_forward", "grouped_forward", "pass_forward", "kernels_forward"):
        middle = 0.5 * (getattr(none, name) + getattr(every, name))
        np.testing.assert_allclose(getattr(half, name), middle)
    assert none.grouped_forward[0] == 0.0


def test_zero_bubble_schedules_idle_as_their_timeline_does() -> None:
    """1F1B idles (p - 1) (F + B) = 7 of a micro-batch's time; ZB-H1 about half of that or less
    (Qi et al., arXiv 2401.10241, section 2.1: (p - 1)(F + B - 2 W) with B and W apart), ZB-2p a
    few per cent of the step."""
    share = {
        name: one(replace(GPT_RUN, schedule=name), "idle_share")
        for name in ("1f1b", "zb-h1", "zb-1p", "zb-2p")
    }
    assert share["1f1b"] == 0.0  # has a closed form
    # Forward, input and weight pass are alike but for the scores and passes over memory.
    assert 7 / 3 < share["zb-1p"] <= share["zb-h1"] < 7 * 0.6
    assert share["zb-2p"] < 0.06 * 32


def test_seconds_of_a_pass_by_hand() -> None:
    row = {"score_forward": 16.0, "recomputed_matmul": 0.5, "recomputed_routed": 0.25}
    for k, name in enumerate(("matmul", "grouped", "attention", "pass")):
        row |= {f"{name}_forward": 2.0**k, f"{name}_backward": 100.0 * 2**k}
    # Scores' backward takes half as long again; a half of 1 and a quarter of 30 run once more.
    assert pass_seconds(row) == (31.0, 1500.0 + 24.0 + 0.5 + 7.5)


@pytest.mark.parametrize("layers", [48, 46])
@pytest.mark.parametrize(
    ("schedule", "vpp"), [("interleaved", 2), ("interleaved", 3), ("zb-h1", 1)]
)
def test_a_pipeline_idles_as_the_timeline_of_its_stages(
    schedule: str, vpp: int, layers: int
) -> None:
    """From the layers of every virtual stage. Of 46 layers the first and the last stage have one
    less, but zero-bubble schedules are timed as if the last alone had. Of the head a third is
    forward, a third its inputs' and a third its weights' gradient; 16 of 32 micro-batches."""
    model = replace(GPT_RUN.model, num_layers=layers)
    run = changed(
        GPT_RUN, model=model, pp=4, vpp=vpp, schedule=schedule, stack="megatron-core", tp=4
    )
    found = features([run])
    row = {field.name: float(getattr(found, field.name)[0]) for field in fields(Features)}
    counts = [share.num_layers for share in stage_split(run)]
    counts[0] = counts[0] if vpp > 1 else counts[1]
    heads = [0.0] * (4 * vpp - 1) + [(row["head_matmul"] + row["head_pass"]) / 3]
    forward, backward = pass_seconds(row)
    weight, send = row["matmul_backward"] / 2, row["cut_inner"] + row["cut_outer"]

    def seconds(layer_s: float, thirds: int) -> tuple[float, ...]:
        return tuple(n * layer_s + thirds * h for n, h in zip(counts, heads, strict=True))

    durations = Durations(
        forward_s=seconds(forward, 1),
        backward_s=seconds(backward, 2),
        backward_input_s=seconds(backward - weight, 1),
        backward_weight_s=seconds(weight, 1),
        send_forward_s=(send,) * (4 * vpp),
        send_backward_s=(send,) * (4 * vpp),
    )
    order = build_schedule(
        schedule, num_ranks=4, num_microbatches=16, stages_per_rank=vpp, durations=durations
    )
    timeline = simulate(order, durations)
    busy = max(sum(seconds(forward + backward, 3)[rank::4]) for rank in range(4))
    whole = max(timeline.end_s) if vpp > 1 else longest_rank_s(timeline)
    assert row["idle_share"] == pytest.approx(whole / busy - 16)


def test_interleaving_idles_by_its_chunks() -> None:
    """With a head of next to nothing, inside a node: (p - 1) / v of a micro-batch's time (Narayanan
    et al., arXiv 2104.04473, section 2.2.2) and a little for the sends."""
    light = changed(
        GPT_RUN,
        model=replace(GPT_RUN.model, vocab_size=128, learned_positions=0),
        tp=2,
        pp=4,
        schedule="interleaved",
    )
    for vpp in (2, 3, 4):
        assert 3 / vpp <= one(changed(light, vpp=vpp), "idle_share") < 1.1 * 3 / vpp


def test_more_microbatches_do_not_change_what_is_idle() -> None:
    short, long = (
        one(replace(GPT_RUN, schedule="zb-1p", global_batch=count), "idle_share")
        for count in (32, 320)
    )
    assert short == pytest.approx(long)


def test_pipelines_too_long_for_a_timeline_take_the_closed_form() -> None:
    """A timeline of 512 stages takes minutes to build, and one such row would hold up its table."""
    long = changed(
        GPT_RUN,
        model=replace(GPT_RUN.model, num_layers=1024),
        pp=512,
        global_batch=2048,
    )
    for name, vpp in (("zb-2p", 1), ("interleaved", 2)):
        assert one(changed(long, schedule=name, vpp=vpp), "idle_share") == 0.0


# ---- Arrays


def test_runs_do_not_see_each_other() -> None:
    runs = [GPT_RUN, LLAMA_RUN, MEGATRON, changed(MEGATRON, model=MIXTRAL, ep=4)]
    together = features(runs)
    for place, run in enumerate(runs):
        alone = features([run])
        for field in fields(Features):
            np.testing.assert_allclose(
                getattr(together, field.name)[place],
                getattr(alone, field.name)[0],
                rtol=1e-12,
                err_msg=field.name,
            )
    some = together.rows(np.asarray([2, 0]))
    assert some.layers.tolist() == [32, 12]


@settings(max_examples=40, deadline=None)
@given(run=training_runs())
def test_quantities_are_finite_and_not_negative(run: TrainingRun) -> None:
    found = features([run])
    for field in fields(Features):
        value = getattr(found, field.name)[0]
        assert np.isfinite(value), field.name
        assert value >= 0.0, field.name


def test_bytes_move_at_the_devices_bandwidth() -> None:
    """Llama's head: 20 bytes a logit of 4096 x 128256."""
    assert get_device("h100-sxm-80gb").memory_bandwidth_bytes_per_s.value == H100_BYTES_PER_S
    assert one(MEGATRON, "head_pass") == pytest.approx(20 * 4096 * 128256 / H100_BYTES_PER_S)
    assert LLAMA_8B.vocab_size == 128256


def test_each_predicted_token_has_logits_and_a_loss() -> None:
    """DeepSeek-V3 predicts one token ahead of the next."""
    ahead = replace(MEGATRON, model=DEEPSEEK_V3)
    alone = replace(ahead, model=replace(DEEPSEEK_V3, predicted_ahead=0))
    for name in ("head_matmul", "head_peak", "head_pass"):
        assert one(ahead, name) == pytest.approx(2 * one(alone, name)), name
