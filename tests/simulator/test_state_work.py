"""Layers that are no pair of attention and feed-forward: states, windows, latent experts."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device
from profiles.model.figures.transformer import StateSpace
from simulator.training_run.framework.framework import Framework, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.features import features
from simulator.training_run.work.layer_work import LayerWork, layer_work
from simulator.training_run.work.matmul import cast_bytes, gradient_sizes
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.stage_share import stage_split
from simulator.training_run.work.state_work import StateWork, state_work
from simulator.training_run.work.work_seconds import work_seconds
from tests.simulator.described_runs import DEEPSEEK_V3, LLAMA_8B, LLAMA_RUN, changed, figures

CORE = load_framework("megatron-core")
NANO = figures("Nemotron 3 Nano 30B-A3B")
SUPER = figures("Nemotron 3 Super 120B-A12B")
RUN = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)


def step_compute(run: TrainingRun) -> tuple[float, float]:
    x = features([run])
    return float(x.attention_forward[0]), float(x.state_forward[0])


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # Total and active parameters as the models' cards print them, embeddings included.
        ("Nemotron-H 8B", 8.1, 8.1),
        ("Nemotron-H 56B", 56.3, 56.3),
        ("Nemotron 3 Nano 30B-A3B", 31.6, 3.6),
        ("Nemotron 3 Super 120B-A12B", 120.6, 12.7),
        ("Nemotron 3 Ultra 550B-A55B", 550.0, 55.0),
        ("Mamba-2 2.7B", 2.7, 2.7),
        ("Jamba v0.1", 52.0, 12.0),
        ("Qwen3-Next 80B-A3B", 80.0, 3.8),
        ("DeepSeek-V3", 671.0, 37.6),
        ("Kimi K2", 1026.0, 32.9),
        ("Qwen3 235B-A22B", 235.0, 22.2),
        ("GLM-4.5", 353.0, 33.6),
        ("GLM-4.5-Air", 107.0, 13.4),
        ("Llama 4 Maverick", 400.7, 17.2),
        ("gpt-oss 120B", 116.8, 5.7),
    ],
)
def test_parameters_are_those_of_the_cards(name: str, billions: float, active: float) -> None:
    model = figures(name)
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.02)
    assert model.parameters - idle == pytest.approx(active * 1e9, rel=0.03)


def test_the_products_of_mamba_2() -> None:
    """Two chunks of 4 tokens, H 2 heads of P 3, N 5 states, G 1 (arXiv 2405.21060, section 6):
    per chunk C B^T is 4 x 5 x 4, and each head has 4 x 4 x 3, 5 x 4 x 3 and 4 x 5 x 3."""
    state = StateSpace(heads=2, head_size=3, state_size=5, chunk=4)
    model = replace(LLAMA_8B, num_layers=4, state=state, state_layers=4)
    work = state_work(model, tokens=8, seq_len=8, tp=1, dtype="bfloat16", width=2.0)
    found = sorted((x.m, x.n, x.k, x.count) for x in work.products)
    assert found == [(4, 3, 4, 4), (4, 3, 5, 4), (4, 4, 5, 2), (5, 3, 4, 4)]
    # A delta rule multiplies keys with keys as well, and corrects its values.
    delta = replace(model, state=replace(state, rule="delta"))
    again = state_work(delta, tokens=8, seq_len=8, tp=2, dtype="bfloat16", width=2.0).products
    assert sorted((x.m, x.n, x.k, x.count) for x in again) == [
        *[(4, 3, 4, 2)] * 2,
        *[(4, 3, 5, 2)] * 2,
        *[(4, 4, 5, 2)] * 2,
        (4, 5, 4, 2),
        (5, 3, 4, 2),
    ]
    # Made again for the backward: C B^T and the states; the outputs' gradient times X once more.
    again = sum(2 * x.m * x.n * x.k * x.count for x in work.again)
    assert again == 2 * (2 * 80 + 2 * 2 * (60 + 48))
    # States of two chunks in fp32, written, read and written again: 3 x 4 x 2 x (6 x 5).
    # Convolution over 6 + 10 channels, read and written; output and gate read, result written.
    assert work.pass_bytes == 2 * 8 * (2 * 16 + 3 * 6) + 3 * 4 * 2 * 30


def test_weights_of_a_state_layer() -> None:
    """mamba2-2.7b: h 2560, 80 heads of 64, N 128: in 2560 x (2 x 5120 + 256 + 80), out 5120 x
    2560, convolution 5376 x 4, three numbers a head and a norm of 5120."""
    state = figures("Mamba-2 2.7B").state
    assert state is not None
    assert state.parameters(2560) == 2560 * 10576 + 5120 * 2560 + 5376 * 4 + 240 + 5120


def test_a_scan_runs_on_vector_units_alone() -> None:
    """Jamba: 28 of 32 layers, 8192 channels of 16 states, 9 flop each (arXiv 2312.00752)."""
    run = replace(RUN, model=figures("Jamba v0.1"))
    work = layer_work(run, CORE, experts=False)
    assert work.state.products == ()
    assert work.state.scan_flop == pytest.approx(28 / 32 * 9 * run.tokens * 8192 * 16)
    # In, to steps (rank 256) and two states, steps to channels, out; a rank has half the channels.
    split = layer_work(changed(run, tp=2), CORE, experts=False).matmuls[:4]
    shapes = [(16384 // 2, 4096), (256 + 2 * 16, 4096), (4096, 256), (4096, 4096)]
    assert [(x.m, x.n, x.k) for x in split] == [(run.tokens, *shape) for shape in shapes]


def test_the_bytes_of_mamba_1_by_hand() -> None:
    """Per token and inner channel (mamba_ssm, selective_scan): 2 of the convolution, 3 of output,
    gate and result, 4 of the scan's own operands; no products."""
    state = StateSpace(heads=6, head_size=1, state_size=5, rule="scan")
    model = replace(LLAMA_8B, num_layers=4, state=state, state_layers=4)
    work = state_work(model, tokens=8, seq_len=8, tp=1, dtype="bfloat16", width=2.0)
    assert work.pass_bytes == 2 * 8 * (2 + 3 + 4) * 6
    assert work.products == ()


def test_states_are_no_faster_on_blackwell_than_on_hopper() -> None:
    """Products and states of 8,192 tokens: 128 heads of 64, N 128, G 1 in chunks of 256, on an H100
    within a third of the 0.65 ms that vLLM's pull request 27299 prints; a B200 streams no faster
    than its products on an H100."""
    state = StateSpace(heads=128, head_size=64, state_size=128, groups=1, chunk=256)
    model = replace(LLAMA_8B, num_layers=4, state=state, state_layers=4)
    run = replace(RUN, model=model, seq_len=8192, micro_batch=1)
    work = layer_work(run, CORE, experts=False)
    alone = LayerWork(matmuls=(), state=replace(work.state, pass_bytes=0.0))
    hopper, blackwell = work_seconds([("h100-sxm-80gb", alone), ("b200-sxm", alone)])
    assert blackwell == hopper
    states = {"state_forward_s", "state_backward_s"}
    assert {f.name for f in fields(hopper) if getattr(hopper, f.name)} == states
    once = replace(alone, state=replace(alone.state, again=()))
    again = replace(alone, state=StateWork(products=work.state.again))
    (less, made) = work_seconds([("h100-sxm-80gb", each) for each in (once, again)])
    more = hopper.state_backward_s - less.state_backward_s
    assert more == pytest.approx(made.state_forward_s)
    states_s = 3 * 4 * 8192 / 256 * 128 * 64 * 128 / 3.35e12
    assert hopper.state_forward_s + states_s == pytest.approx(0.65e-3, rel=1 / 3)
    # 8 products per head and 3 per group, against 3 and 1.
    assert 2.0 < hopper.state_backward_s / hopper.state_forward_s < 3.0


def test_a_hybrid_is_the_average_of_its_layers() -> None:
    """Nano: of 52 layers 23 have a state, 6 attention, 23 experts."""
    run = replace(RUN, model=NANO)
    work = layer_work(run, CORE, experts=True)
    assert [x.count for x in work.matmuls[:4]] == [23 / 52, 23 / 52, 6 / 52, 6 / 52]
    (core,) = work.attention
    assert core.count == 6 / 52
    # Each of its layers is one block, half of what norms and messages of other models count.
    assert NANO.blocks_per_layer == 1.0
    spread = changed(run, ep=8, dp=8)
    # 23 layers with experts of twice the launches, half a layer's otherwise; 16 experts each, whose
    # launches from C++ take the host 0.3 of an op.
    kernels = 9 * (29 + 2 * 23) / 52 + 23 / 52 * 2 * 0.3 * 16
    assert features([spread]).kernels_forward[0] == pytest.approx(kernels)


def test_experts_in_a_latent_width() -> None:
    """Super: tokens of 4096 go to 22 experts in 1024, of 2688 inside, without a gate."""
    run = changed(RUN, model=SUPER, ep=8)
    work = layer_work(run, CORE, experts=True)
    tokens = run.tokens * 22 * 8 / 512
    assert [(x.m, x.n, x.k, x.count) for x in work.grouped] == [
        (tokens, 2688, 1024, 64),
        (tokens, 1024, 2688, 64),
    ]
    for tp in (1, 4):
        split = layer_work(changed(run, tp=tp), CORE, experts=True)
        shapes = {(x.m, x.n, x.k) for x in split.matmuls}
        assert {(run.tokens / tp, 1024, 4096), (run.tokens / tp, 4096, 1024)} <= shapes
    wide = replace(SUPER, expert_input=0)
    sent = features([run, replace(run, model=wide)]).expert_inner
    assert 2.0 < sent[1] / sent[0] < 4.5  # four times the bytes; small messages are slower


def test_biases_of_experts_are_passes_of_their_own() -> None:
    """gpt-oss: 4 experts a token, 2,880 wide, 28 bytes per element that they give in Megatron-Core;
    one fused kernel adds them in Megatron-Bridge 26.06."""
    run = changed(RUN, model=figures("gpt-oss 120B"), dp=8, ep=8)
    plain = replace(run, model=replace(run.model, expert_biases=False))
    fused = load_framework("megatron-bridge-26.06")

    def moved(each: TrainingRun, stack: Framework) -> float:
        return layer_work(each, stack, experts=True).forward_pass_bytes

    assert moved(run, CORE) - moved(plain, CORE) == pytest.approx(28 * run.tokens * 4 * 2880)
    assert moved(run, fused) == moved(plain, fused)


def test_windows_shorten_the_core_and_nothing_else() -> None:
    narrow = replace(LLAMA_8B, window=1024, window_layers=16)
    run = replace(RUN, seq_len=16384)
    full = step_compute(run)[0]
    half = step_compute(replace(run, model=narrow))[0]
    every = step_compute(replace(run, model=replace(narrow, window_layers=32)))[0]
    # 16384 keys against a window of 1024: at most an eighth of the work, and blocks at its edges.
    assert half == pytest.approx((full + every) / 2)
    assert full / 8 < every < full / 4
    # A window as long as the sequence is none.
    assert step_compute(replace(run, model=replace(narrow, window=16384)))[0] == full
    assert (
        layer_work(run, CORE, experts=False).matmuls
        == layer_work(replace(run, model=narrow), CORE, experts=False).matmuls
    )


def test_the_fullest_expert_rank_sets_the_pace() -> None:
    mixtral = changed(RUN, model=figures("Mixtral 8x7B"), ep=8)
    x = features([mixtral, replace(mixtral, expert_imbalance=1.5)])
    assert x.grouped_forward[1] / x.grouped_forward[0] == pytest.approx(1.5, rel=0.1)
    assert x.expert_inner[1] > 1.3 * x.expert_inner[0]
    assert x.matmul_forward[1] == x.matmul_forward[0]


def test_frozen_experts_have_no_gradient_of_their_weights() -> None:
    run = changed(RUN, model=figures("Mixtral 8x7B"), ep=8, lora=True)
    work = layer_work(run, CORE, experts=True)
    trained = layer_work(replace(run, lora=False), CORE, experts=True)
    sizes = [gradient_sizes(x.m, x.n, x.k) for x in work.grouped]
    alone = [
        LayerWork(
            matmuls=(),
            grouped=tuple(
                replace(x, m=m, n=n, k=k)
                for x, products in zip(work.grouped, sizes, strict=True)
                for m, n, k in products[:count]
            ),
        )
        for count in (1, 2)
    ]
    every = work_seconds([(run.device, x) for x in (work, trained, *alone)])
    frozen_s, trained_s = (x.grouped_backward_s for x in every[:2])
    assert frozen_s == pytest.approx(every[2].grouped_forward_s, rel=1e-12)
    assert trained_s == pytest.approx(every[3].grouped_forward_s, rel=1e-12)
    assert frozen_s < trained_s


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize(("ahead", "block"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_units_of_predicted_tokens_against_a_list_of_them(
    count: int, ahead: int, block: int
) -> None:
    """As Megatron-Bridge writes a layout: decoders, per further token its layers and its logits,
    and the loss, in equal parts of which the last may be smaller."""
    model = replace(DEEPSEEK_V3, predicted_ahead=ahead, predicting_layers=block)
    units = "t" * 61 + ("m" * block + "o") * ahead + "L"
    each = -(-len(units) // count)
    parts = [units[k * each : (k + 1) * each] for k in range(count)]
    stages = stage_split(changed(RUN, model=model, schedule="1f1b", pp=count))
    assert [s.predicting_layers for s in stages] == [part.count("m") for part in parts]
    assert [s.num_layers for s in stages] == [part.count("t") + part.count("m") for part in parts]


def test_predicted_tokens_take_a_layer_and_logits_on_the_last_stage() -> None:
    """DeepSeek-V3 on 4 and 16 stages as Megatron-Bridge lays it out: 16, 16, 16, 13 layers and the
    one that predicts; 15 stages of 4, then 1 and that one."""
    run = changed(RUN, model=DEEPSEEK_V3, schedule="1f1b")
    assert DEEPSEEK_V3.predicted_ahead == 1
    assert stage_layers(changed(run, pp=4)) == (16, 14)
    assert stage_layers(changed(run, pp=16)) == (4, 2)
    assert stage_layers(run) == (62, 62)
    plain = replace(run, model=replace(DEEPSEEK_V3, predicted_ahead=0))
    x = features([run, plain])
    assert x.head_matmul[0] == pytest.approx(2 * x.head_matmul[1])


def test_casts_to_8_bits() -> None:
    """mxfp8: [4, 8] x [8, 2]: 32 inputs and 8 gradients, 2 bytes read and two copies of 33/32."""
    run = replace(RUN, precision="mxfp8")
    (first, *_) = layer_work(run, CORE, experts=False).matmuls
    forward, backward = cast_bytes("mxfp8", [replace(first, m=4, n=2, k=8)])
    assert forward == 32 * (2 + 2 * 33 / 32)
    assert backward == 8 * (2 + 2 * 33 / 32)
    assert cast_bytes("bf16", [first]) == (0.0, 0.0)


def test_what_cannot_be() -> None:
    with pytest.raises(UnknownNameError, match="sdd"):
        StateSpace(heads=1, head_size=1, state_size=1, rule="sdd")
    with pytest.raises(InputError, match="3 groups do not divide 4 heads"):
        StateSpace(heads=4, head_size=1, state_size=1, groups=3)
    for change, said in (
        ({"window_layers": 3}, "need a window"),
        ({"window": 8, "window_layers": 99}, "99 layers with a window"),
        ({"state_layers": 2}, "together"),
    ):
        with pytest.raises(InputError, match=said):
            replace(LLAMA_8B, **change)  # type: ignore[arg-type] # by name


def test_the_backward_of_a_recurrence_moves_its_gradients_too() -> None:
    """One second of bytes, half a second of a scan on vector units and thrice that back."""
    h100 = get_device("h100-sxm-80gb")
    vector = h100.peak_flop_per_s["float32"].value
    scan = LayerWork(
        matmuls=(),
        state=StateWork(pass_bytes=h100.memory_bandwidth_bytes_per_s.value, scan_flop=0.5 * vector),
    )
    (found,) = work_seconds([(h100.name, scan)])
    assert found.state_forward_s == pytest.approx(1.0 + 0.5)
    assert found.state_backward_s == pytest.approx(2.0 + 1.5)
