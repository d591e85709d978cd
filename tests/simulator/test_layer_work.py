"""What a device computes in a micro-batch, and models by their widths, by published figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from profiles.errors import InputError, UnknownNameError
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.figures.transformer import Transformer
from profiles.model.graph import OpKind
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import trace_model
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import (
    Framework,
    framework_names,
    framework_of,
    load_framework,
)
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.layer_work import (
    LayerWork,
    head_work,
    layer_work,
    matmul_type,
)
from simulator.training_run.work.matmul import Matmul, gradient_sizes
from simulator.training_run.work.stage_share import stage_split
from simulator.training_run.work.work_seconds import work_seconds
from tests.profiles.test_figures_from_config import config_of
from tests.simulator.described_runs import (
    DEEPSEEK_V3,
    GPT_175B,
    GPT_RUN,
    LLAMA_8B,
    LLAMA_RUN,
    MIXTRAL,
    changed,
    figures,
    training_runs,
)

OLD = load_framework("megatron-2021")
CORE = load_framework("megatron-core")


def flop(matmuls: Iterable[Matmul]) -> float:
    return sum(2 * x.m * x.n * x.k * x.count for x in matmuls)


def gradients(matmuls: Iterable[Matmul]) -> list[Matmul]:
    return [replace(x, m=m, n=n, k=k) for x in matmuls for m, n, k in gradient_sizes(x.m, x.n, x.k)]


def shapes(matmuls: Iterable[Matmul]) -> list[tuple[float, float, float]]:
    return [(x.m, x.n, x.k) for x in matmuls]


def dense(run: TrainingRun, stack: Framework = CORE) -> LayerWork:
    return layer_work(run, stack, experts=False)


def moe(run: TrainingRun, stack: Framework = CORE, imbalance: float = 1.0) -> LayerWork:
    return layer_work(run, stack, experts=True, imbalance=imbalance)


def test_a_layer_of_gpt_3_on_one_of_eight_ranks() -> None:
    """h = 12288, 96 heads of 128, one sequence of 2048 tokens, tp = 8: 12 heads a rank."""
    work = dense(GPT_RUN, OLD)
    assert shapes(work.matmuls) == [
        (2048, 4608, 12288),  # 3 h / 8 = 36864 / 8
        (2048, 12288, 1536),  # h / 8
        (2048, 6144, 12288),  # 4 h / 8 = 49152 / 8
        (2048, 12288, 6144),
    ]
    assert shapes(work.score_matmuls) == [(2048, 2048, 128), (2048, 128, 2048)]
    assert [x.count for x in work.score_matmuls] == [12, 12]
    assert {x.dtype for x in (*work.matmuls, *work.score_matmuls)} == {"float16"}
    assert work.attention == ()
    # Each token's scores: 13 bytes moved a score (2 x 4 + 2 x 2 + 1), 12 heads of 2048^2.
    assert work.score_bytes == 13 * 12 * 2048**2
    # 13 passes over h and 2 over the rank's 6144 of the inner width, 2 bytes each.
    assert work.forward_pass_bytes == 2 * 2048 * (13 * 12288 + 2 * 6144)
    assert work.backward_pass_bytes == pytest.approx(1.4 * work.forward_pass_bytes)


def test_the_backward_of_a_matmul() -> None:
    of_input, of_weight = gradient_sizes(2048, 4608, 12288)
    assert of_input == (2048, 12288, 4608)
    assert of_weight == (12288, 4608, 2048)


def test_a_step_of_gpt_3_has_the_published_flop() -> None:
    """Narayanan et al., arXiv 2104.04473, section 5.1 and equation 3: a layer's forward is
    24 B s h^2 (1 + s / 6h), and with full recompute a step is
    96 B s l h^2 (1 + s / 6h + V / 16 l h). Ours are of one of 8 tensor-parallel ranks."""
    s, h, layers = 2048, 12288, 96
    run = replace(GPT_RUN, model=replace(GPT_175B, vocab_size=51200))
    work = dense(run, OLD)
    forward = flop(work.matmuls) + flop(work.score_matmuls)
    assert 8 * forward == pytest.approx(24 * s * h**2 * (1 + s / (6 * h)), rel=1e-12)
    backward = flop(gradients(work.matmuls)) + flop(gradients(work.score_matmuls))
    assert backward == pytest.approx(2 * forward, rel=1e-12)
    head = head_work(run, OLD)
    step = layers * (2 * forward + backward) + flop(head.matmuls) + flop(gradients(head.matmuls))
    published = 96 * s * layers * h**2 * (1 + s / (6 * h) + 51200 / (16 * layers * h))
    assert 8 * step == pytest.approx(published, rel=1e-12)


def test_the_vocabulary_is_padded_as_the_stack_does() -> None:
    # Megatron-LM: a multiple of 128 x tp = 1024 above 50257 is 50 x 1024 = 51200, 6400 a rank.
    assert OLD.padded_vocabulary(GPT_RUN.model, GPT_RUN.degrees.tp) == 51200
    (logits,) = head_work(GPT_RUN, OLD).matmuls
    assert (logits.m, logits.n, logits.k) == (2048, 6400, 12288)
    assert load_framework("nanotron").padded_vocabulary(GPT_RUN.model, 1) == 50257
    # 34 bytes a logit, half of them in each pass.
    head = head_work(GPT_RUN, OLD)
    assert head.forward_pass_bytes == head.backward_pass_bytes == 17 * 2048 * 6400


def test_grouped_queries_and_a_gated_feed_forward() -> None:
    """Llama 3 8B: 32 heads of 128, 8 of keys and values, h = 4096, inner 14336 twice."""
    work = dense(changed(LLAMA_RUN, tp=4, dp=2))
    assert shapes(work.matmuls) == [
        (4096, 1536, 4096),  # 128 x (32 + 2 x 8) / 4
        (4096, 4096, 1024),
        (4096, 7168, 4096),  # 2 x 14336 / 4
        (4096, 4096, 3584),
    ]
    (core,) = work.attention
    assert (core.heads, core.kv_heads, core.seq) == (8, 2, 4096)
    assert core.newest
    assert not work.score_matmuls


def test_a_rank_holds_one_head_of_keys_and_values_at_least() -> None:
    wide = dense(changed(LLAMA_RUN, tp=16, dp=1))
    # 2 heads of queries, 1 of keys and 1 of values, of 128 each.
    assert wide.matmuls[0].n == 512
    (core,) = wide.attention
    assert core.kv_heads == 1


def test_latent_attention() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 4.2): h 7168, ranks 1536 and 512, 128 heads of
    128 + 64 for keys and 128 for values."""
    run = replace(LLAMA_RUN, model=DEEPSEEK_V3, zero_stage=1, stack="megatron-core")
    work = dense(run)
    assert shapes(work.matmuls[:5]) == [
        (4096, 1536, 7168),
        (4096, 24576, 1536),  # 128 x (128 + 64)
        (4096, 576, 7168),  # 512 + 64
        (4096, 32768, 512),  # 128 x (128 + 128)
        (4096, 7168, 16384),  # 128 x 128
    ]
    # Tensor parallelism divides the heads, not the ranks of queries, keys and values.
    assert shapes(dense(changed(run, tp=2, dp=4)).matmuls[:5]) == [
        (4096, 1536, 7168),
        (4096, 12288, 1536),
        (4096, 576, 7168),
        (4096, 16384, 512),
        (4096, 7168, 8192),
    ]
    # As many weights as products: the matrices are used once per token.
    assert flop(work.matmuls[:5]) == 2 * 4096 * DEEPSEEK_V3.attention_parameters
    # Scores are 192 wide, what they weigh 128: 2 s^2 (192 + 128) = 4 s^2 160.
    (core,) = work.attention
    assert core.head_size == 160
    # Without a rank for queries they come from the hidden state directly (DeepSeek-V2-Lite).
    lite = figures("DeepSeek-V2-Lite")
    plain_query = dense(replace(run, model=lite)).matmuls[0]
    assert lite.latent is not None
    assert (plain_query.k, plain_query.n) == (2048, 16 * 192)


def test_experts_share_what_their_ranks_send() -> None:
    """Mixtral on 4 expert ranks: 8 / 4 = 2 experts here, each with 4096 x 2 x 4 / 8 = 4096
    tokens; the router is one more product."""
    run = changed(LLAMA_RUN, model=MIXTRAL, ep=4, zero_stage=1)
    work = moe(run)
    up, down = work.grouped
    assert (up.m, up.n, up.k, up.count) == (4096, 2 * 14336, 4096, 2)
    assert (down.m, down.n, down.k, down.count) == (4096, 4096, 14336, 2)
    router = work.matmuls[-1]
    assert (router.m, router.n, router.k) == (4096, 8, 4096)
    # Per token the weights of two experts, however they are spread.
    for ranks in (1, 2, 4, 8):
        spread = moe(changed(run, ep=ranks))
        assert flop(spread.grouped) == 2 * 4096 * 2 * MIXTRAL.expert_parameters
        assert flop(gradients(spread.grouped)) == 2 * flop(spread.grouped)
    assert flop(moe(run, imbalance=1.25).grouped) == pytest.approx(1.25 * flop(work.grouped))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_share_the_experts_work(tp: int) -> None:
    """tp ranks hold the same tokens: together they run each token through top_k experts once."""
    alone = changed(LLAMA_RUN, model=MIXTRAL, dp=1, zero_stage=1)
    shared = changed(alone, tp=tp, sequence_parallel=True, ep=tp)
    assert tp * flop(moe(shared).grouped) == pytest.approx(flop(moe(alone).grouped))


def test_shared_experts_are_dense_work() -> None:
    run = changed(LLAMA_RUN, model=DEEPSEEK_V3, zero_stage=1, ep=8)
    work = moe(run)
    # 256 / 8 = 32 experts here, 4096 x 8 x 8 / 256 = 1024 tokens each; one shared of 2048.
    assert (work.grouped[0].m, work.grouped[0].count) == (1024, 32)
    assert shapes(work.matmuls[-2:]) == [(4096, 2 * 2048, 7168), (4096, 7168, 2048)]


def test_context_parallelism_splits_tokens_and_scores() -> None:
    run = changed(LLAMA_RUN, cp=4, dp=2)
    work = dense(run)
    assert {x.m for x in work.matmuls} == {1024}
    (core,) = work.attention
    assert (core.seq, core.count) == (4096, 0.25)


def test_sequence_parallelism_splits_the_norms() -> None:
    run = replace(GPT_RUN, sequence_parallel=True)
    # 10 passes over h of 256 tokens, 3 over the 6144 inner values of 2048 tokens.
    assert dense(run).forward_pass_bytes == 2 * (10 * 256 * 12288 + 3 * 2048 * 6144)


def test_our_executor_rotates_its_own_heads_and_sums_gradients_of_all_tokens() -> None:
    torch, inner = load_framework("torch"), 3.29 * 4096 * 7168
    whole = changed(LLAMA_RUN, tp=2, dp=4, sequence_parallel=False)
    norms = 27.62 * 4096 + 8.28 * 2048  # widths of 4096; rotation of half of the heads
    forward = 2 * (norms * 4096 + inner)
    work = layer_work(whole, torch, experts=False)
    assert work.forward_pass_bytes == pytest.approx(forward)
    assert work.backward_pass_bytes == pytest.approx(2.2 * forward)
    work = layer_work(changed(whole, sequence_parallel=True), torch, experts=False)
    shared = 2 * (35.9 * 2048 * 4096 + inner)
    assert work.forward_pass_bytes == pytest.approx(shared)
    # Of the sums, 2.2 times the norms have the share of 2048 tokens.
    assert work.backward_pass_bytes == pytest.approx(2.2 * shared + 2 * 5.91 * 2048 * 4096)


@pytest.mark.parametrize(
    ("precision", "layer", "head"),
    [
        ("bf16", "bfloat16", "bfloat16"),
        ("fp16", "float16", "float16"),
        ("fp8", "float8_e4m3fn", "bfloat16"),
        ("mxfp8", "float8_e4m3fn", "bfloat16"),
        ("nvfp4", "float4_e2m1fn_x2", "bfloat16"),
        ("fp32", "tf32", "tf32"),
    ],
)
def test_low_precision_stays_in_the_layers(precision: str, layer: str, head: str) -> None:
    run = replace(LLAMA_RUN, precision=precision)
    work = dense(run)
    assert matmul_type(run) == layer
    assert {x.dtype for x in work.matmuls} == {layer}
    (core,) = work.attention
    assert core.dtype == head
    assert {x.dtype for x in head_work(run, CORE).matmuls} == {head}


@settings(max_examples=60, deadline=None)
@given(run=training_runs())
def test_ranks_together_do_the_work_of_the_model(run: TrainingRun) -> None:
    """Weights used once per token: over tp and cp ranks the products of a layer are 2 x weights x
    tokens, but for copied heads of keys and values."""
    model = run.model
    tokens = run.micro_batch * run.seq_len
    copied = max(0, run.degrees.tp - model.num_kv_heads) * 2 * model.head_size * model.hidden_size
    found = run.degrees.tp * run.degrees.cp * flop(dense(run).matmuls)
    weights = model.attention_parameters + copied + model.dense_parameters
    assert found == pytest.approx(2 * tokens * weights)
    if model.num_experts:
        found = run.degrees.tp * run.degrees.cp * flop(moe(run).grouped)
        assert found == pytest.approx(2 * tokens * model.top_k * model.expert_parameters)


# ---- Seconds from the kernels' surfaces


def test_seconds_of_a_layer_lie_between_the_peak_and_a_third_of_it() -> None:
    work = dense(GPT_RUN, OLD)
    (found,) = work_seconds([("a100-sxm-80gb", work)])
    # 312 TFLOP/s of an A100 in 16 bits.
    assert found.peak_forward_s == pytest.approx(flop(work.matmuls) / 312e12)
    assert found.peak_backward_s == pytest.approx(2 * found.peak_forward_s)
    assert found.peak_forward_s < found.matmul_forward_s < 3 * found.peak_forward_s
    (frozen,) = work_seconds([("a100-sxm-80gb", replace(work, frozen=True))])
    assert frozen.matmul_backward_s < found.matmul_backward_s
    assert frozen.peak_backward_s == pytest.approx(found.peak_forward_s)
    assert found.grouped_forward_s == 0.0
    assert found.attention_backward_s > found.attention_forward_s > 0.0


def test_equal_shapes_cost_the_same_in_any_company() -> None:
    first, second = dense(GPT_RUN, OLD), dense(LLAMA_RUN)
    pair = work_seconds([("a100-sxm-80gb", first), ("h100-sxm-80gb", second)])
    assert pair == work_seconds([("a100-sxm-80gb", first)]) + work_seconds(
        [("h100-sxm-80gb", second)]
    )


def test_flash_attention_2_on_hopper_runs_as_amperes_program() -> None:
    """Dao, arXiv 2307.08691, section 4.1: 335 TFLOP/s on H100 against 225 on A100."""
    old = dense(LLAMA_RUN, load_framework("torch-fsdp"))
    on_h100, on_a100 = work_seconds([("h100-sxm-80gb", old), ("a100-sxm-80gb", old)])
    ratio = on_a100.attention_forward_s / on_h100.attention_forward_s
    assert ratio == pytest.approx(335 / 225)
    (newest,) = work_seconds([("h100-sxm-80gb", dense(LLAMA_RUN))])
    assert newest.attention_forward_s < on_h100.attention_forward_s


def test_a_model_all_of_experts_has_no_dense_feed_forward() -> None:
    bare = replace(MIXTRAL, ffn_size=0)
    (found,) = work_seconds([("h100-sxm-80gb", dense(replace(LLAMA_RUN, model=bare)))])
    assert 0.0 < found.matmul_forward_s < 1.0


# ---- Models by their widths


@pytest.mark.parametrize(
    ("name", "billions", "rel"),
    [
        # Safetensors' totals on huggingface.co, model cards of the named repositories: exact.
        ("Llama 3 8B", 8.030261248, 1e-12),  # meta-llama/Meta-Llama-3-8B
        ("Llama 3 70B", 70.553706496, 1e-12),  # meta-llama/Meta-Llama-3-70B
        ("Llama 3.1 405B", 405.853388800, 1e-12),  # meta-llama/Llama-3.1-405B
        ("Mixtral 8x7B", 46.702792704, 1e-12),  # mistralai/Mixtral-8x7B-v0.1
        # Papers' totals, rounded as printed.
        ("DeepSeek-V3", 671.0, 1e-3),  # arXiv 2412.19437, abstract
        ("Qwen3 235B-A22B", 235.0, 1e-3),  # arXiv 2505.09388, table 2
        ("GPT-3 175B", 174.6, 1e-3),  # arXiv 2104.04473, table 1
        ("BLOOM 176B", 176.247, 1e-3),  # arXiv 2211.05100, table 3: 176,247M
        ("Llama 2 70B", 68.976648192, 1e-12),  # meta-llama/Llama-2-70b-hf
    ],
)
def test_parameters_are_the_published_ones(name: str, billions: float, rel: float) -> None:
    assert figures(name).parameters == pytest.approx(billions * 1e9, rel=rel)


def test_gpts_formula() -> None:
    """arXiv 2104.04473, section 5.1, equation 2: P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12 l h);
    the norm after the layers (2 h) is not in it."""
    h, layers, places = 12288, 96, 50257 + 2048
    closed = 12 * layers * h**2 + 13 * layers * h + places * h
    assert GPT_175B.parameters == closed + 2 * h


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Mixtral 8x7B", 12.9),  # arXiv 2401.04088, section 2: "13B active"; 12.9B on mistral.ai
        ("DeepSeek-V3", 37.0),  # arXiv 2412.19437, abstract: 37B activated per token
        ("Qwen3 235B-A22B", 22.0),  # arXiv 2505.09388, table 2
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    model = figures(name)
    active = replace(model, num_experts=model.top_k)
    assert active.parameters == pytest.approx(billions * 1e9, rel=0.02)


def test_a_model_cut_to_its_dense_layers_has_none_with_experts() -> None:
    """DeepSeek-V3's first three layers are dense; cut to two, none of them has experts."""
    cut = replace(DEEPSEEK_V3, num_layers=2)
    assert cut.num_expert_layers == 0
    dense_only = replace(cut, num_experts=0, num_shared_experts=0)
    assert cut.parameters == dense_only.parameters
    assert replace(DEEPSEEK_V3, num_layers=4).num_expert_layers == 1


def test_impossible_models_say_why() -> None:
    with pytest.raises(InputError, match="num_kv_heads must be 1 or more, got 0"):
        replace(LLAMA_8B, num_kv_heads=0)
    with pytest.raises(InputError, match=r"8 experts need a top_k of 1 to 8 .* got 9 and 14336"):
        replace(MIXTRAL, top_k=9)


def test_biases_and_positions_are_counted() -> None:
    """GPT's layer has 13 h small weights: norms 4 h, attention 3 h + h, feed-forward 4 h + h."""
    tiny = Transformer(
        num_layers=1,
        hidden_size=8,
        ffn_size=32,
        num_heads=2,
        num_kv_heads=2,
        head_size=4,
        vocab_size=10,
        gated=False,
        tied_embeddings=True,
        learned_positions=6,
        biases=True,
    )
    assert tiny.small_parameters == 13 * 8
    assert tiny.parameters == 12 * 64 + 13 * 8 + 16 * 8 + 2 * 8


def test_every_stack_reads_and_says_where_it_is_from() -> None:
    for name in framework_names():
        stack = load_framework(name)
        assert stack.name == name
        assert stack.attention in ("fused", "flash-2", "unfused")
        assert len(stack.source) > 20, name
        assert len(stack.date) == 10, name
        # 2 or 4 bytes; an optimizer reads and writes master weights and two moments at least.
        assert {stack.sent_weight_bytes, stack.summed_gradient_bytes} <= {2, 4}
        assert stack.optimizer_traffic_bytes >= 24


@pytest.mark.parametrize(
    ("framework", "stack"),
    [
        ("Megatron-Bridge 26.04", "megatron-bridge"),
        ("Megatron-LM 8aa4619 (Apr 2021)", "megatron-2021"),
        ("Megatron-LM v0.12.0rc3, TE 2.1", "megatron-core"),
        ("composer/llm-foundry FSDP", "torch-fsdp"),
        ("something else", ""),
        ("", ""),
    ],
)
def test_the_longest_beginning_tells_the_stack(framework: str, stack: str) -> None:
    assert framework_of(framework) == stack


def test_an_unknown_stack_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'nanotron'"):
        load_framework("nanotrom")


def test_the_gate_of_attention_doubles_the_query_projection() -> None:
    gated = changed(LLAMA_RUN, model=replace(LLAMA_8B, gated_attention=True))
    queries = 2 * gated.tokens * LLAMA_8B.hidden_size**2
    more = flop(dense(gated).matmuls) - flop(dense(LLAMA_RUN).matmuls)
    assert more == pytest.approx(queries / gated.degrees.tp)
    more_weights = gated.model.parameters - LLAMA_8B.parameters
    assert more_weights == LLAMA_8B.num_layers * LLAMA_8B.hidden_size**2


def test_norms_of_queries_and_keys_move_what_a_trace_counts() -> None:
    """The layers of Qwen3 and of Llama of the same sizes, traced; passes are traced bytes times
    1.55 / 2.36 (torch.toml). Half of the fp32 and normalised values are on each of two ranks."""
    ours = load_framework("torch")
    traced: dict[str, tuple[float, float]] = {}
    for kind in ("llama", "qwen3"):
        spec = ModelSpec(name=kind, source=kind, config=config_of(kind) | {"head_dim": 64})
        block = trace_model(spec, sequence_length=64, dtype="bfloat16").at(2).blocks[1]
        ops = [op for op in (*block.forward_ops, *block.backward_ops) if op.kernels]
        moved = sum(op.read_bytes + op.written_bytes for op in ops if op.kind is OpKind.MEMORY)
        traced[kind] = moved, block.saved_bytes
    model = figures_of_config(config_of("qwen3") | {"head_dim": 64}, "qwen3")
    run = changed(LLAMA_RUN, model=model, stack="torch", seq_len=128, recompute="none")
    plain = replace(run, model=replace(model, query_key_norms=False))
    passes = [_passes(dense(each, ours)) for each in (plain, run)]
    moved, saved = (theirs - mine for mine, theirs in zip(*traced.values(), strict=True))
    assert passes[1] - passes[0] == pytest.approx(moved * 1.55 / 2.36, rel=0.02)
    many = [footprint(replace(each, seq_len=64 * 128)).ranks[0] for each in (plain, run)]
    kept = many[1].activations_bytes - many[0].activations_bytes
    assert kept == pytest.approx(64 * model.num_layers * saved, rel=0.02)
    halves = [_passes(dense(changed(each, tp=2, dp=1), ours)) for each in (plain, run)]
    assert halves[1] - halves[0] == pytest.approx((passes[1] - passes[0]) / 2)
    counts = ours.layer_counts(model)
    assert (counts.kernels_forward, counts.kernels_backward) == (54, 104)


def _passes(work: LayerWork) -> float:
    return work.forward_pass_bytes + work.backward_pass_bytes


def test_layers_with_experts_in_every_second_place_are_on_every_stage() -> None:
    model = replace(MIXTRAL, expert_every=2, ffn_size=14336)
    run = replace(LLAMA_RUN, model=model, degrees=replace(LLAMA_RUN.degrees, pp=4, tp=1, vpp=1))
    shares = [(each.dense_layers, each.expert_layers) for each in stage_split(run)]
    assert shares == [(4, 4)] * 4
    first = replace(run, model=replace(model, first_dense_layers=16, expert_every=1))
    assert [each.dense_layers for each in stage_split(first)] == [8, 8, 0, 0]
    assert model.parameters == first.model.parameters
