"""What differs in kind: adapters, experts sent once, rings, graph compilers, split tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import attention_kernel, compiles_graphs
from simulator.training_run.messages.message_row import reached
from simulator.training_run.run.training_run import NetworkLevel, TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS, owner_of
from simulator.training_run.step.features import features
from simulator.training_run.work.adapter_work import adapter_work
from simulator.values.prediction import Part
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL, at_starts, changed

KIND = {kind.name: kind for kind in KINDS}
MEGATRON = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)
MANY = changed(MEGATRON, dp=1024, global_batch=1024)
LONG = changed(MEGATRON, dp=1, cp=64, global_batch=1, seq_len=2**20)


def one(run: TrainingRun, name: str) -> float:
    return float(getattr(features([run]), name)[0])


def context_s(run: TrainingRun) -> float:
    return float(at_starts([run])[Part.CONTEXT][0])


def test_a_token_goes_to_fewer_nodes_than_experts() -> None:
    assert reached(1, 8) == 1.0
    assert reached(2, 2) == pytest.approx(1.5)
    assert reached(1e9, 8) == pytest.approx(8.0)


def test_experts_are_sent_once_where_the_framework_does_so() -> None:
    spread = changed(MEGATRON, model=MIXTRAL, dp=64, ep=8, global_batch=64)
    between = changed(spread, node_devices=4, dp=32)
    bridge = replace(between, stack="megatron-bridge")
    # Two nodes, two experts a token: copies 2 x 1/2 leave, once 1.5 x 1/2.
    assert one(bridge, "expert_outer") == pytest.approx(
        0.75 * one(between, "expert_outer"), rel=0.01
    )
    # So over a line between sites of four devices.
    line = NetworkLevel(name="line", part_devices=4, bytes_per_s_per_device=1e9, latency_s=0.0)
    far = [one(replace(run, far_levels=(line,)), "expert_far") for run in (between, bridge)]
    assert 0.0 < far[1] == pytest.approx(0.75 * far[0])
    inside = replace(spread, stack="megatron-bridge")
    assert one(inside, "expert_inner") == pytest.approx(one(spread, "expert_inner"))


def test_adapters_leave_no_gradients_to_exchange_and_add_passes_and_kernels() -> None:
    adapters = replace(MANY, lora=True)
    assert one(adapters, "reduce_steps") == one(adapters, "reduce_outer") == 0.0
    assert one(adapters, "kernels_forward") == one(MANY, "kernels_forward") + 16
    work = adapter_work(adapters)
    # Llama 3 8B: 4096 into queries, keys and values and the projection, 4096 + 2 x 1024 + 4096 out.
    inputs, outputs = 2 * 4096, 4096 + 2 * 1024 + 4096
    assert work.forward_pass_bytes == 2 * 4096 * (inputs + 4 * outputs)
    halves = adapter_work(changed(adapters, tp=2, dp=512))
    assert halves.forward_pass_bytes == work.forward_pass_bytes / 2
    assert halves.backward_pass_bytes == work.backward_pass_bytes / 2
    assert work.backward_pass_bytes == 2 * 4096 * (4 * inputs + 2 * outputs)
    more = one(adapters, "pass_forward") - one(MANY, "pass_forward")
    assert more == pytest.approx(work.forward_pass_bytes / 3350e9, rel=1e-3)
    assert adapter_work(MANY).forward_pass_bytes == 0.0


def test_a_ring_hides_under_long_attention_and_not_under_short() -> None:
    short = replace(LONG, seq_len=2**13)
    messages = {}
    for run in (short, LONG):
        x = features([run])
        messages[run.seq_len] = float(3 * np.maximum(x.context_inner, x.context_outer)[0])
    assert context_s(short) / 32 > 0.9 * messages[2**13]
    slower = 1.0 + KIND["congestion"].start * np.log2(LONG.num_nodes)
    assert context_s(LONG) / 32 == pytest.approx(
        KIND["context_exposed"].start * slower * messages[2**20], rel=0.1
    )


def test_a_graph_compiler_launches_no_kernels_and_fuses_the_attention() -> None:
    gaudi = replace(GPT_RUN, device="gaudi2", stack="megatron-deepspeed", network=None)
    assert compiles_graphs(gaudi)
    assert one(gaudi, "launches") == one(gaudi, "kernels_forward") == 0.0
    assert attention_kernel(gaudi, load_framework(gaudi.stack)) == "fused"
    assert one(gaudi, "score_forward") == 0.0
    assert owner_of(KIND["level"], gaudi) == "megatron-deepspeed (compiled)"
    parts = at_starts([replace(gaudi, model=LLAMA_RUN.model)])
    assert float(parts[Part.OVERHEAD][0]) < 1e-3 * KIND["step_ms"].start


def test_xla_on_a_gpu_has_no_host_work_per_step() -> None:
    xla = replace(LLAMA_RUN, stack="maxtext")
    assert one(xla, "launches") == 0.0
    assert float(at_starts([xla])[Part.OVERHEAD][0]) == 0.0
    assert float(at_starts([LLAMA_RUN])[Part.OVERHEAD][0]) > 0.0


def test_split_tensors_take_torch_s_host_longer() -> None:
    split = changed(LLAMA_RUN, tp=2, dp=4)
    assert one(split, "kernels_forward") == 6 * one(LLAMA_RUN, "kernels_forward")
    core = replace(split, stack="megatron-core")
    assert one(core, "kernels_forward") == one(MEGATRON, "kernels_forward")


def test_an_attention_kernel_has_one_coefficient_in_all_frameworks() -> None:
    bridge = replace(MEGATRON, stack="megatron-bridge")
    assert owner_of(KIND["attention"], bridge) == owner_of(KIND["attention"], MEGATRON)
    assert owner_of(KIND["attention"], GPT_RUN) == "unfused-kernels"
    assert owner_of(KIND["attention"], LLAMA_RUN) == "flash-2-kernels"
