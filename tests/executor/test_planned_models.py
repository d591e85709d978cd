"""Models that are no plain chains of layers: planned by the search, run, gradients checked.

A UNet (skips), T5 and Whisper (encoder and decoder), a two-tower model (two inputs) and ResNet-50
go through `plan` and through the executor on two and four processes.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from planner.axes import Axes
from shardwright import api
from simulator.values.plan import Plan
from simulator.values.workload import Workload
from tests.executor.cases import run_job

T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": 96,
    "dropout_rate": 0.0,
    "feed_forward_proj": "relu",
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 32,
    "vocab_size": 96,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "decoder_start_token_id": 0,
}
MESHES = {
    2: [{"pp": (2,)}],
    4: [{"pp": (4,)}, {"pp": (2,), "dp": (2,)}],
}
_TOLERANCE = 1e-5  # relative error of any gradient


def models(folder: Path) -> dict[str, str]:
    """Name -> what to pass as the model."""
    found = {
        "unet": "tests.executor.tiny_models:unet",
        "two-tower": "examples.two_tower:build",
        "resnet50": "tests.executor.tiny_models:resnet50",
    }
    for name, config in (("t5", T5), ("whisper", WHISPER)):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        found[name] = str(path)
    return found


def planned(model: str, devices: int, pins: dict[str, tuple[int, ...]]) -> Plan:
    """The plan that the search finds on so many devices."""
    traced = shardwright.trace(
        model, sequence_length=16, precision="fp32", tp_degrees=(1,), target="cpu"
    )
    cluster = shardwright.cluster(f"1x{devices}xa100-sxm-40gb")
    work = Workload(global_batch=8, sequence_length=16, precision="fp32")
    space = Axes(tp=(1,), micro_batch=(1, 2), **pins)
    answer = api.plan(traced, cluster, work, space=space)
    assert answer.plan is not None
    assert answer.bound <= answer.step_time_s
    # What --model says to `run`: a plan names a factory by its function only.
    return replace(answer.plan, model=model)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_planned_models_pass_the_gradient_check(processes: int, tmp_path: Path) -> None:
    cases = []
    for name, model in models(tmp_path).items():
        if name in ("whisper", "resnet50") and processes == 2:
            # An encoder and a decoder as T5, which test_branch_stages.py cuts anywhere; a chain.
            continue
        for pins in MESHES[processes]:
            plan = planned(model, processes, pins)
            assert (plan.degrees.pp, len(plan.stages)) == (
                pins["pp"][0],
                plan.degrees.pp * plan.degrees.vpp,
            )
            cases.append((f"{name} {pins}", plan))
    results = run_job(cases, processes, tmp_path)
    assert len(results) == len(cases)
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= _TOLERANCE, result
