"""The memory of described runs: by hand, against Korthikanti's equations, against schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device
from profiles.model.figures.transformer import LatentAttention, Transformer
from simulator.memory.footprint import footprint
from simulator.memory.run_tensors import RankFacts, RunTensors
from simulator.memory.static import run_static_bytes
from simulator.schedules.in_flight import most_in_flight
from simulator.schedules.schedule import build_schedule
from simulator.training_run.framework.framework import framework_of, load_framework
from simulator.training_run.framework.kept_tensor import KeptTensor, LingeringTensor, Moment
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from tests.oracles.held_activations import most_held
from tests.simulator.described_runs import DEEPSEEK_V3, GPT_RUN, LLAMA_RUN, changed
from tests.simulator.small_gpt import RUN, SMALL_GPT, layer_bytes

GIB = 2**30
# The Ultra-Scale sweep's 1B: 16 layers of 67,108,864 matmul weights, a head of four layers' weight.
ULTRA_1B = replace(
    RUN,
    model=Transformer(
        num_layers=16,
        hidden_size=2048,
        ffn_size=8192,
        num_heads=32,
        num_kv_heads=32,
        head_size=64,
        vocab_size=131_072,
        gated=True,
        tied_embeddings=True,
    ),
    device="h100-sxm-80gb",
    stack="nanotron",
    precision="bf16",
    seq_len=4096,
    global_batch=256,
)


def parameters_of(run: TrainingRun) -> float:
    """Those of the fullest rank."""
    return footprint(run).fullest_details.here.num_parameters


def lingering(run: TrainingRun) -> float:
    return footprint(run).details[0].lingering_bytes


def tensors_of(run: TrainingRun) -> RunTensors:
    return RunTensors(run, load_framework(run.stack))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_layer_keeps_what_korthikanti_counts(tp: int) -> None:
    # arXiv 2205.05198: equation 1 (t = 1), 2 (tensor parallel), 4 (with sequence parallelism),
    # section 5's selective recompute, and 2 sbh for full.
    s, b, h, a = 512, 2, 1024, 16
    sbh, scores = s * b * h, 5 * a * s / h
    run = changed(RUN, tp=tp)
    assert layer_bytes(run) == pytest.approx(sbh * (10 + 24 / tp + scores / tp))
    split = replace(run, sequence_parallel=True)
    assert layer_bytes(split) == pytest.approx(sbh * (34 + scores) / tp)
    assert layer_bytes(replace(split, recompute="selective")) == pytest.approx(sbh * 34 / tp)
    assert layer_bytes(replace(run, recompute="full")) == pytest.approx(2 * sbh)


def test_a_small_gpt_by_hand() -> None:
    # 8 (12 h^2 + 13 h) + (V + 512) h + 2 h, with V padded from 50,000 to 391 x 128.
    parameters = 8 * (12 * 1024**2 + 13 * 1024) + (50_048 + 512) * 1024 + 2 * 1024
    memory = footprint(RUN)
    found, details = memory.fullest, memory.fullest_details
    assert details.here.num_parameters == parameters
    # fp16: weights 2, gradients 2, fp32 weights and Adam's moments 12.
    assert found.static_bytes == 16 * parameters
    # Eight layers of s b (34 h + 5 a s), and the loss: logits in 2 + 4 + 4 bytes, two inputs.
    tokens = 512 * 2
    assert found.activations_bytes == pytest.approx(8 * tokens * (34 * 1024 + 5 * 16 * 512))
    assert details.moment == "cross-entropy"
    assert found.transient_bytes == pytest.approx(tokens * (10 * 50_048 + 2 * 2 * 1024))


def test_what_bf16_and_zero_change() -> None:
    run = changed(RUN, dp=4, stack="megatron-core", precision="bf16")
    each, count = footprint(run).fullest, parameters_of(run)
    assert each.parameters_bytes == 2 * count
    assert each.gradients_bytes == 4 * count
    sharded = footprint(replace(run, zero_stage=1)).fullest
    assert sharded.optimizer_bytes == pytest.approx(12 * count / 4)
    assert sharded.gradients_bytes == each.gradients_bytes
    whole = footprint(replace(run, zero_stage=3)).fullest
    assert whole.static_bytes == pytest.approx(18 * count / 4)


def test_adapters_alone_have_gradients_and_states() -> None:
    run = replace(RUN, stack="megatron-core", precision="fp8", lora=True)
    rank = footprint(run).fullest
    # Rank 16 beside [h, 3 h] and [h, h] of 8 layers: 16 (4 h + 2 h) each. Frozen weights in one
    # byte; adapters in bf16 with gradients in bf16 (fp8 runs) and 12 bytes of states.
    adapters = 8 * 16 * (4 * 1024 + 2 * 1024)
    assert rank.parameters_bytes == parameters_of(run) + 2 * adapters
    assert (rank.gradients_bytes, rank.optimizer_bytes) == (2 * adapters, 12 * adapters)
    halved = footprint(replace(run, lora_rank=8)).fullest
    assert halved.optimizer_bytes == rank.optimizer_bytes / 2
    trained = footprint(replace(run, lora=False)).fullest
    assert footprint(run).fullest.activations_bytes < trained.activations_bytes


def test_frozen_weights_are_no_wider_than_they_are_computed_with() -> None:
    # FSDP keeps trained weights in fp32: adapters (as above) in 4 bytes, frozen weights in bf16.
    run = replace(RUN, stack="torch-fsdp", precision="bf16")
    adapters = 8 * 16 * (4 * 1024 + 2 * 1024)
    assert footprint(run).fullest.parameters_bytes == 4 * parameters_of(run)
    tuned = footprint(replace(run, lora=True)).fullest
    assert tuned.parameters_bytes == 2 * parameters_of(run) + 4 * adapters


def test_an_offloaded_optimizer_leaves_the_device() -> None:
    run = replace(RUN, stack="megatron-core", precision="bf16")
    here = footprint(run).fullest
    away = footprint(replace(run, optimizer_offload=True)).fullest
    # 12 bytes of states go, weights (2) and summed gradients (4) stay.
    assert here.static_bytes - away.static_bytes == 12 * parameters_of(run)
    assert away.static_bytes == 6 * parameters_of(run)
    # FSDP's policy takes the sharded parameters and gradients along.
    sharded = replace(run, stack="torch-fsdp", zero_stage=3, optimizer_offload=True)
    assert footprint(sharded).fullest.static_bytes == 0.0


def test_megatron_keeps_gradients_in_the_type_that_they_are_summed_in() -> None:
    run = replace(RUN, stack="megatron-core", precision="bf16")
    halves = footprint(replace(run, gradient_reduction="bf16")).fullest
    assert halves.gradients_bytes == 2 * parameters_of(run)
    assert footprint(run).fullest.gradients_bytes == 4 * parameters_of(run)
    other = replace(run, stack="torch-fsdp", zero_stage=3)
    sums = replace(other, gradient_reduction="bf16")
    assert footprint(sums).fullest.gradients_bytes == footprint(other).fullest.gradients_bytes


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_offloaded_activations_leave_two_layers_behind(share: float) -> None:
    run = changed(RUN, stack="megatron-core", precision="bf16", pp=2)
    run = replace(run, schedule="1f1b", global_batch=8)
    here = footprint(run).ranks[0].activations_bytes
    away = footprint(replace(run, activation_offload=share)).ranks[0].activations_bytes
    # Rank 0 of two keeps two micro-batches of 4 layers: 8 layers' worth.
    assert away == pytest.approx(here * (1 - share) + 2 * share * here / 8)
    with pytest.raises(InputError, match=r"from 0 .none in host memory. to 1"):
        replace(run, activation_offload=1.5)


def test_uneven_experts_hold_more_tokens() -> None:
    moe = replace(
        SMALL_GPT, num_experts=8, top_k=2, expert_size=2048, first_dense_layers=0, gated=True
    )
    run = replace(RUN, model=moe, stack="megatron-core", precision="bf16")
    run = replace(run, degrees=replace(run.degrees, dp=2, ep=2))
    even, uneven = (tensors_of(replace(run, expert_imbalance=by)) for by in (1.0, 1.5))
    tokens = KeptTensor(name="t", width="routed")
    # Two experts per token: 2 h elements of 2 bytes.
    assert even.bytes_of(tokens) == run.tokens * 2 * 1024 * 2
    assert uneven.bytes_of(tokens) == 1.5 * even.bytes_of(tokens)
    with pytest.raises(InputError, match=r"use 1 .balanced. or more"):
        replace(run, expert_imbalance=0.5)


def test_experts_keep_what_matmuls_read_in_one_byte_in_fp8() -> None:
    """Transformer Engine's grouped linears keep their inputs in fp8 alone: per routed token the
    hidden size and the activated inner width take one byte instead of two; the gate and up
    projections' outputs, which an elementwise kernel reads, stay in bf16."""
    experts = replace(SMALL_GPT, num_experts=8, top_k=2, expert_size=256, num_shared_experts=1)
    run = replace(RUN, model=experts, stack="megatron-core", precision="bf16")
    run = replace(run, device="h100-sxm-80gb")
    narrow = replace(run, precision="fp8")
    saved, dense_saved = (
        getattr(tensors_of(run).layer("none"), kind)
        - getattr(tensors_of(narrow).layer("none"), kind)
        for kind in ("expert", "dense")
    )
    # A dense layer has the same attention and norms, and keeps inner and activated states in fp8.
    attention_saved = dense_saved - 1024 * 2 * SMALL_GPT.ffn_size
    routed = 1024 * 2 * (SMALL_GPT.hidden_size + 256)
    assert saved - attention_saved == pytest.approx(routed + 1024 * 256)


def test_buckets_hold_no_more_than_there_is() -> None:
    small = tensors_of(RUN)
    bucket = KeptTensor(name="b", width="parameters", bytes=2, most=5e8)
    for count, held in ((1e8, 2e8), (5e8, 1e9), (3e9, 1e9)):
        assert small.bytes_of(bucket, RankFacts(num_parameters=count)) == held
    with pytest.raises(InputError, match="limits the width parameters"):
        KeptTensor(name="b", width="hidden", most=1.0)


def test_gathered_blocks_are_those_of_sharded_parameters() -> None:
    run = changed(RUN, stack="torch-fsdp", precision="bf16", dp=8)
    assert footprint(replace(run, zero_stage=3)).fullest.communication_bytes > (
        footprint(replace(run, zero_stage=2)).fullest.communication_bytes
    )


def test_experts_are_held_by_fewer_ranks_than_the_rest() -> None:
    moe = replace(
        SMALL_GPT,
        num_experts=8,
        top_k=2,
        expert_size=2048,
        first_dense_layers=1,
        gated=True,
        ffn_size=4096,
    )
    run = changed(RUN, model=moe, stack="megatron-core", precision="bf16", dp=8, zero_stage=1)
    alone, spread = run, changed(run, ep=8)
    experts = 7 * 8 * 3 * 1024 * 2048
    # Seven of eight experts' weights go elsewhere; their states had 8 ranks, now none to share.
    assert parameters_of(alone) - parameters_of(spread) == pytest.approx(experts * 7 / 8)
    states = [footprint(each).fullest.optimizer_bytes for each in (alone, spread)]
    assert states[1] == pytest.approx(states[0])
    # Of tp 2 x dp 8 ranks 8 spread the experts: each one's states have two ranks. Without ep the
    # tensor group halves each expert, and 8 ranks share the halves: as many bytes of 12 each.
    halved, wide = changed(run, tp=2), changed(run, tp=2, ep=8)
    states = [footprint(each).fullest.optimizer_bytes for each in (halved, wide)]
    assert states[1] == pytest.approx(states[0])
    assert states[0] > 12 * experts / 16


def test_latent_attention_keeps_expanded_keys_and_values() -> None:
    latent = LatentAttention(
        query_rank=256, key_value_rank=128, nope_size=64, rope_size=32, value_size=64
    )
    run = replace(
        RUN, model=replace(SMALL_GPT, latent=latent), stack="megatron-core", precision="bf16"
    )
    # Queries and keys of 16 x 96, values and output of 16 x 64, latents twice (before and after
    # their norm), instead of 4 x 1024: (2 x 1536 + 2 x 1024 + 2 x 384 - 4096) more in 2 bytes.
    extra = layer_bytes(run) - layer_bytes(replace(run, model=SMALL_GPT))
    assert extra == pytest.approx(1024 * 2 * (2 * 1536 + 2 * 1024 + 2 * 384 - 4096))


@pytest.mark.parametrize(
    ("name", "v"),
    [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1)],
)
@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_in_flight_is_what_the_schedule_keeps(name: str, v: int, p: int, rounds: int) -> None:
    m = rounds * p
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    assert most_in_flight(name, p, m, v) == most_held(schedule)


@pytest.mark.parametrize("name", ["zbv", "v-half", "v-min"])
def test_more_micro_batches_keep_no_more_after_the_warm_up(name: str) -> None:
    many = build_schedule(name, num_ranks=4, num_microbatches=40, stages_per_rank=2)
    assert most_in_flight(name, 4, 16, 2) == most_held(many)
    assert most_in_flight(name, 4, 400, 2) == most_held(many)


def test_stages_of_equal_layers_and_of_ends_that_count() -> None:
    layers = [s.num_layers for s in stage_split(changed(RUN, pp=4))]
    assert layers == [2, 2, 2, 2]
    # Zero Bubble's models have k p - 2 layers: embedding and head stand for the other two.
    thirty = changed(RUN, model=replace(SMALL_GPT, num_layers=30), pp=8)
    assert [s.num_layers for s in stage_split(thirty)] == [3, 4, 4, 4, 4, 4, 4, 3]
    odd = changed(RUN, model=replace(SMALL_GPT, num_layers=9), pp=4)
    assert [s.num_layers for s in stage_split(odd)] == [3, 2, 2, 2]


def test_nanotron_cuts_by_cost() -> None:
    # 16 layers and a head of 4: 20 units; a stage ends with the layer that reaches its share, 5 k.
    shares = stage_split(changed(ULTRA_1B, pp=4))
    assert [share.num_layers for share in shares] == [5, 5, 5, 1]
    assert [share.has_head for share in shares] == [False, False, False, True]
    # Shares of 20 / 3: the seventh layer is the first past 6.67, the fourteenth past 13.33.
    shares = stage_split(changed(ULTRA_1B, pp=3))
    assert [share.num_layers for share in shares] == [7, 7, 2]


def test_what_lingers_is_reserved_up_to_what_the_device_has() -> None:
    # One rank with tp 8 in a node: 2 tensors of each of 16 layers, s b h in bf16 each.
    run = changed(ULTRA_1B, tp=8, sequence_parallel=True, micro_batch=4)
    each = 4 * 4096 * 2048 * 2
    (rank,) = footprint(run).ranks
    assert lingering(run) == 2 * 16 * each
    assert rank.reserved_bytes == pytest.approx(rank.peak_bytes + lingering(run))
    # What comes and goes needs a quarter more (nanotron's file), and what lingers room of its own.
    lasting = rank.static_bytes + rank.communication_bytes
    passing = 1.25 * (rank.activations_bytes + rank.transient_bytes)
    assert rank.required_bytes == pytest.approx(lasting + passing + lingering(run))
    # Two ranks' worth of layers in flight reach the most that waits, 34.
    deep = replace(run, model=replace(run.model, num_layers=32))
    assert lingering(deep) == 34 * each
    # Without tensor parallelism no output waits for a collective.
    assert lingering(changed(run, tp=1)) == 0.0
    # 40 sequences do not fit beside what lingers.
    full = replace(run, micro_batch=40)
    assert footprint(full).reserved_bytes <= get_device(run.device).usable_bytes
    assert footprint(full).needed_bytes > get_device(run.device).usable_bytes
    # Where tensors take all there is, nothing lingers.
    assert lingering(replace(run, micro_batch=80)) == 0.0


def test_layouts_that_nanotron_refuses() -> None:
    # Shares of 1.25 layers: ranks 0, 3, 7 and 11 take two layers, the others to 11 one, rank 12 the
    # head, and cast and loss one each, so that nothing is left for rank 15.
    deep = changed(ULTRA_1B, pp=16, schedule="1f1b")
    refused = footprint(deep)
    assert refused.refused == "1 of 16 pipeline ranks would hold no block of nanotron's cut"
    assert not refused.fits
    few = changed(ULTRA_1B, pp=4, schedule="1f1b", micro_batch=128)
    assert footprint(few).refused.startswith("2 micro-batches are fewer than the pp - 1 = 3")
    assert not footprint(replace(few, micro_batch=4)).refused


def test_a_published_peak_part_by_part() -> None:
    # SimuMax B200 table, llama3-405b of 4 layers on tp 8: 38.574 GiB allocated on every rank.
    model = Transformer(
        num_layers=4,
        hidden_size=16_384,
        ffn_size=53_248,
        num_heads=128,
        num_kv_heads=16,
        head_size=128,
        vocab_size=128_256,
        gated=True,
        tied_embeddings=False,
    )
    run = changed(
        RUN,
        model=model,
        device="b200-sxm",
        stack="megatron-core",
        precision="bf16",
        tp=8,
        sequence_parallel=True,
        zero_stage=1,
        micro_batch=1,
        global_batch=4,
        seq_len=4096,
    )
    found = footprint(run)
    # 18 bytes a parameter on dp 1.
    assert found.fullest.static_bytes / parameters_of(run) == 18
    assert found.allocated_bytes / GIB == pytest.approx(38.574, rel=2e-3)
    assert found.shown_bytes == found.allocated_bytes < found.reserved_bytes
    assert found.fits


def test_the_context_is_shown_by_the_device_alone() -> None:
    found = footprint(replace(RUN, memory_kind="device"))
    # a100-sxm-80gb.toml: 2.2 GiB for context, kernels and NCCL; megatron-2021.toml: 3.5 GiB for
    # NCCL's groups and loaded kernels of training.
    assert found.shown_bytes - found.reserved_bytes == pytest.approx(5.7 * GIB, rel=0.05)


def test_a_framework_that_is_like_another_differs_where_its_file_says() -> None:
    run = replace(RUN, stack="megatron-2021", precision="fp16")
    own = replace(run, stack=framework_of("OneFlow 75f11b8"))
    # The same tensors, printed by nvidia-smi and without an allocator's blocks.
    assert footprint(own).allocated_bytes == footprint(run).allocated_bytes
    on_device = footprint(replace(own, memory_kind="device"))
    assert footprint(own).shown_bytes == on_device.shown_bytes
    assert footprint(own).reserved_bytes == footprint(own).allocated_bytes


def test_messages_name_what_there_is() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown framework 'nanotro'.*Did you mean 'nanotron'"
    ):
        footprint(replace(RUN, stack="nanotro"))
    with pytest.raises(
        InputError, match=r"nanotron .* ZeRO stage 3 is unknown \(its file describes stages 0, 1\)"
    ):
        footprint(replace(ULTRA_1B, zero_stage=3))
    with pytest.raises(UnknownNameError, match="width 'hiden'"):
        KeptTensor(name="x", width="hiden")
    with pytest.raises(UnknownNameError, match="condition 'gatd'"):
        KeptTensor(name="x", width="hidden", only=("gatd",))
    KeptTensor(name="x", width="hidden", bytes=0.0, count=0.0)
    for wrong in ({"count": -1}, {"bytes": -1}):
        with pytest.raises(InputError, match=r"-1 .*must be 0 or more"):
            KeptTensor(name="x", width="hidden", **wrong)
    for width, most, says in (("hidden", 1, "not hidden"), ("parameters", -1, "0 .no limit. or")):
        with pytest.raises(InputError, match=says):
            KeptTensor(name="x", width=width, most=most)
    LingeringTensor(name="x", width="hidden", each=0.0, most=0.0)
    with pytest.raises(InputError, match="x: each 2 and most -1 must be 0 or more"):
        LingeringTensor(name="x", width="hidden", each=2, most=-1)
    with pytest.raises(UnknownNameError, match="width 'hiden'"):
        LingeringTensor(name="x", width="hiden", each=2, most=1)
    with pytest.raises(UnknownNameError, match="place 'tail'"):
        Moment(name="x", where="tail", tensors=())


def test_layers_that_predict_further_tokens_take_memory() -> None:
    """DeepSeek-V3, pp 16: the last stage has a layer, the one that predicts, its projection, a
    second table and the logits of both; without prediction it has 3 layers and one table."""
    run = changed(
        RUN,
        model=DEEPSEEK_V3,
        stack="megatron-core",
        device="h100-sxm-80gb",
        pp=16,
        dp=64,
        ep=64,
        zero_stage=1,
        global_batch=4096,
        seq_len=4096,
    )
    plain = replace(run, model=replace(run.model, predicted_ahead=0))
    assert [s.num_layers for s in stage_split(run)] == [4] * 15 + [2]
    assert sum(s.num_layers for s in stage_split(run)) == run.model.num_layers + 1
    assert sum(s.num_layers for s in stage_split(plain)) == run.model.num_layers

    def parameters(run: TrainingRun) -> float:
        return math.fsum(rank.here.num_parameters for rank in footprint(run).details)

    model = run.model
    layer = model.mixer_parameters + model.small_parameters + model.expert_layer_parameters
    added = layer + 2 * model.hidden_size**2  # what joins the hidden state and the embedding
    added -= model.num_experts * model.expert_parameters * 63 / 64
    added += model.vocab_size * model.hidden_size
    assert parameters(run) - parameters(plain) == pytest.approx(added, rel=1e-3)
    models = [replace(model, predicted_ahead=ahead) for ahead in (0, 1, 2)]
    none, one, two = (parameters(changed(run, model=each, pp=1, dp=1024)) for each in models)
    added -= model.vocab_size * model.hidden_size
    assert [one - none, two - none] == pytest.approx([added, 2 * added], rel=1e-3)
    last, without = footprint(run).ranks[-1], footprint(plain).ranks[-1]
    assert last.transient_bytes > without.transient_bytes


def test_a_tied_table_on_a_rank_with_both_ends_is_held_once_but_by_our_executor() -> None:
    """A V's first rank has embedding and head: stages of our executor have copies of their own
    (executor/rank.py), so it holds a table more."""
    run = changed(ULTRA_1B, stack="torch", pp=2, vpp=2, schedule="zbv", recompute="none")
    shares = tuple(share for share in stage_split(run) if share.rank == 0)
    assert {share.has_embedding for share in shares} == {True, False}
    held = {
        stack: run_static_bytes(
            replace(run, stack=stack),
            load_framework(stack),
            load_framework("torch").memory_at(0),
            shares,
        )[1]
        for stack in ("torch", "torch-fsdp")
    }
    assert held["torch"] - held["torch-fsdp"] == 131_072 * 2048


def test_caches_grow_with_the_working_set_not_with_what_waits() -> None:
    """megatron-core.toml caches 0.8 of one layer and the moment. More micro-batches in flight add
    their activations and no more."""
    run = changed(RUN, stack="megatron-core", pp=4, schedule="1f1b")
    few = footprint(replace(run, global_batch=2 * run.micro_batch))
    many = footprint(replace(run, global_batch=64 * run.micro_batch))
    held = [memory.ranks[0].activations_bytes for memory in (few, many)]
    assert held[1] == pytest.approx(held[0] * 4 / 2)
    for memory in (few, many):
        rank, details = memory.ranks[0], memory.details[0]
        layer = details.kept[0].bytes_each
        assert details.working_set_bytes == pytest.approx(layer + rank.transient_bytes)
        cached = 0.8 * details.working_set_bytes
        assert rank.reserved_bytes == pytest.approx(rank.peak_bytes + cached)


def test_the_backward_of_a_layer_by_hand() -> None:
    """megatron-core.toml, a middle rank: gradients of the residual stream and of two inner states
    in bf16. Full recomputation runs the layer again, so what it would have kept exists as well."""
    run = changed(RUN, stack="megatron-core", precision="bf16", pp=4, schedule="1f1b")
    kept, tokens = layer_bytes(run), run.seq_len * run.micro_batch
    for recompute in ("none", "selective", "full"):
        each = replace(run, recompute=recompute)
        memory = footprint(each)
        assert memory.details[1].moment == "backward of a layer"
        assert memory.ranks[1].transient_bytes == pytest.approx(
            tokens * 2 * (1024 + 2 * 4096) + kept - layer_bytes(each)
        )


def test_freeing_norms_and_activations_by_hand() -> None:
    """Kwai's recomputation (USENIX ATC 2024) of Llama 65B, sequence 8192 over tp 2 and cp 2. Each
    layer frees the outputs of two norms, 2 x 2 x 8192 bytes a token, and of the activation,
    2 x 22016 bytes, of 4096 tokens over tp 2: 150 of 546 MiB."""
    run = changed(
        RUN,
        model=Transformer(
            num_layers=80,
            hidden_size=8192,
            ffn_size=22016,
            num_heads=64,
            num_kv_heads=64,
            head_size=128,
            vocab_size=32004,
            gated=True,
            tied_embeddings=False,
        ),
        stack="megatron-core",
        precision="bf16",
        seq_len=8192,
        micro_batch=1,
        tp=2,
        cp=2,
        dp=1,
        sequence_parallel=True,
    )
    freed = 4096 * (2 * 2 * 8192 + 2 * 22016) / 2
    assert freed / 2**20 == 150
    kept = layer_bytes(run)
    assert kept - layer_bytes(replace(run, recompute="norm-activation")) == pytest.approx(freed)
    norms = layer_bytes(replace(run, recompute="norm"))
    assert kept - norms == pytest.approx(4096 * 2 * 2 * 8192 / 2)
    inner = 4096 * 3 * 2 * 22016 / 2
    assert norms - layer_bytes(replace(run, recompute="norm-mlp")) == pytest.approx(inner)


def test_an_unfused_loss_by_hand() -> None:
    """megatron-core-2023.toml: 2 + 4 + 4 bytes a logit and the head's input twice. A vocabulary of
    a million makes it the peak: 1,000,064 entries (a multiple of 128) x 1,024 tokens x 10 bytes."""
    run = replace(RUN, stack="megatron-core-2023", model=replace(SMALL_GPT, vocab_size=1_000_064))
    memory = footprint(run)
    tokens = run.seq_len * run.micro_batch
    assert memory.fullest_details.moment == "cross-entropy"
    assert memory.fullest.transient_bytes == pytest.approx(
        tokens * (10 * 1_000_064 + 2 * 2 * SMALL_GPT.hidden_size)
    )


def test_deepspeed_s_states_by_hand() -> None:
    """transformers.toml, ZeRO 2 over 8: weights 2 bytes, gradients and states (2 + 16) / 8."""
    run = changed(RUN, stack="transformers", precision="bf16", zero_stage=2, dp=8)
    (rank,) = footprint(run).ranks
    assert rank.static_bytes == pytest.approx(parameters_of(run) * (2 + 18 / 8))


def test_what_collectives_hold_back_before_torch_2_7() -> None:
    """megatron-core-2023.toml: two tensors per layer and micro-batch in flight, at most 34."""
    run = changed(RUN, stack="megatron-core-2023", tp=2)
    hidden = run.seq_len * run.micro_batch * SMALL_GPT.hidden_size * 2
    assert lingering(run) == pytest.approx(min(34, 2 * SMALL_GPT.num_layers) * hidden)
    assert lingering(replace(run, stack="megatron-core")) == 0.0


def test_two_copies_share_their_states_over_twice_the_ranks() -> None:
    """DualPipe's ranks hold two stages, and the states of each with one more rank per replica."""
    run = replace(GPT_RUN, stack="megatron-core", zero_stage=1, precision="bf16")
    one = footprint(changed(run, dp=2, schedule="zb-h1")).ranks[3]
    two = footprint(changed(run, dp=2, schedule="dualpipe")).ranks[3]
    assert two.parameters_bytes == pytest.approx(2 * one.parameters_bytes, rel=1e-3)
    assert two.optimizer_bytes == pytest.approx(one.optimizer_bytes, rel=1e-3)


def test_activations_of_fp32_take_twice_the_bytes_of_bf16() -> None:
    run = replace(LLAMA_RUN, stack="torch-fsdp")
    half, whole = (footprint(replace(run, precision=p)).ranks[0] for p in ("bf16", "fp32"))
    # But the sums of the softmax, which are fp32 in both.
    assert whole.activations_bytes == pytest.approx(2 * half.activations_bytes, rel=1e-3)


@pytest.mark.parametrize(
    ("recomputed", "first_rank", "second_rank"),
    [
        # 12 layers on 2 ranks, the first 3 dense: 3 dense and 3 expert layers, then 6 of experts.
        # A stage's first layers are recomputed: 2 are dense; 5 are 3 dense and 2 expert layers.
        (
            2,
            {"layers": 2, "layers not recomputed": 1, "expert layers not recomputed": 3},
            {"expert layers": 2, "expert layers not recomputed": 4},
        ),
        (
            5,
            {"layers": 3, "expert layers": 2, "expert layers not recomputed": 1},
            {"expert layers": 5, "expert layers not recomputed": 1},
        ),
        (0, {"layers": 3, "expert layers": 3}, {"expert layers": 6}),  # 0: all of them
    ],
)
def test_the_first_layers_of_a_stage_are_recomputed_dense_ones_before_experts(
    recomputed: int, first_rank: dict[str, int], second_rank: dict[str, int]
) -> None:
    moe = replace(
        SMALL_GPT, num_layers=12, num_experts=8, top_k=2, expert_size=2048, first_dense_layers=3
    )
    run = changed(RUN, model=moe, stack="megatron-core", precision="bf16", pp=2, global_batch=8)
    run = replace(run, recompute="full", recompute_layers=recomputed)
    memory = footprint(run)
    ranks = memory.details
    assert [{kept.name: kept.count for kept in rank.kept} for rank in ranks] == [
        first_rank,
        second_rank,
    ]
    # Tensors of the moment, and one of the largest layers.
    for found, rank in zip(memory.ranks, ranks, strict=True):
        largest = max(kept.bytes_each for kept in rank.kept)
        assert rank.working_set_bytes == pytest.approx(found.transient_bytes + largest)
    # A recomputed layer keeps its input alone: sequence x micro-batch x hidden in bf16.
    for kept in ranks[0].kept:
        if "not recomputed" not in kept.name:
            assert kept.bytes_each == run.seq_len * run.micro_batch * 1024 * 2


def test_gradients_without_buffers_exist_from_the_first_backward_on() -> None:
    """FSDP2, fp32: one micro-batch has left when gradients exist; with two, the activations of the
    second exist together with gradients."""
    run = changed(
        RUN, stack="torch-fsdp", zero_stage=3, precision="fp32", dp=2, micro_batch=2, global_batch=4
    )
    one, two = footprint(run), footprint(replace(run, global_batch=8))
    (alone,), (first,) = one.ranks, two.ranks
    weights = one.details[0].here.num_parameters
    assert alone.gradients_bytes == 0
    assert first.gradients_bytes == 4 * weights / 2
    assert first.peak_bytes - alone.peak_bytes == pytest.approx(4 * weights / 2)
    # With few logits the peak is the backward of the last layer, before gradients exist.
    small = replace(run, model=replace(SMALL_GPT, vocab_size=128))
    (rank,), (details,) = footprint(small).ranks, footprint(small).details
    assert (details.moment, rank.gradients_bytes) == ("backward of a layer", 0)
    assert rank.activations_bytes == pytest.approx(8 * layer_bytes(small))
    # Without activations that last, the peak is the end of the backward: all gradients, and what
    # one layer keeps.
    light = footprint(replace(run, recompute="full", micro_batch=1, global_batch=2, seq_len=16))
    (end,) = light.ranks
    assert end.activations_bytes == 0
    assert end.gradients_bytes == 4 * weights / 2
    assert end.transient_bytes > light.details[0].kept[0].bytes_each
    # Megatron's buffers last.
    other = footprint(replace(run, stack="megatron-core", zero_stage=1))
    assert other.ranks[0].gradients_bytes == 4 * other.details[0].here.num_parameters
