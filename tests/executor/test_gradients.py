"""Gradients of every combination that the planner may emit, against the unsplit model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.values.plan import Plan, Recompute
from simulator.values.runnable import why_not_runnable_plan
from tests.executor.cases import (
    CNN_ENTRIES,
    GPT2_ENTRIES,
    LLAMA_ENTRIES,
    make_plan,
    run_job,
    write_models,
)
from tests.executor.config_zoo import config_of

PIPELINES = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2))
TOLERANCE = 1e-5


# Of four processes, what two cannot show: stages between the first and the last, and two axes at
# once. Of pipelines with replicas every schedule and every ZeRO stage above 0 once, of each other
# pair of axes one layout; all of them are the study of make validate.
ON_FOUR = {
    (1, 1): {"none": (3,)},
    (1, 2): {"none": (3,)},
    (2, 1): {"1f1b": (1,), "gpipe": (2,), "interleaved": (3,)},
    (2, 2): {"interleaved": (0,)},
    (4, 1): {"1f1b": (0,)},
}


def cases_for(
    processes: int, models: dict[str, str], *, every_pair: bool
) -> list[tuple[str, Plan]]:
    """Every legal way to lay the degrees out over so many processes, on the models it fits."""
    cases = []
    for pp in (1, 2, 4):
        for tp in (1, 2):
            if processes % (pp * tp):
                continue
            dp = processes // (pp * tp)
            for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                for schedule, vpp in PIPELINES if pp > 1 else (("none", 1),):
                    if pp * vpp > len(LLAMA_ENTRIES):
                        continue
                    if not every_pair and zero not in ON_FOUR[pp, tp].get(schedule, ()):
                        continue
                    degrees = {"pp": pp, "dp": dp, "tp": tp, "vpp": vpp}
                    name = f"pp{pp} dp{dp} tp{tp} zero{zero} {schedule}"
                    plan = make_plan(
                        models["llama"],
                        LLAMA_ENTRIES,
                        zero_stage=zero,
                        schedule=schedule,
                        **degrees,
                    )
                    assert why_not_runnable_plan(plan) == ""
                    cases.append((f"llama {name}", plan))
    return cases


def recompute_cases(processes: int, models: dict[str, str]) -> list[tuple[str, Plan]]:
    cases = []
    for kind in (Recompute.ATTENTION, Recompute.FULL):
        for degrees in (
            {"pp": processes, "schedule": "1f1b"},
            {"dp": processes, "zero_stage": 3},
            {"tp": 2, "dp": processes // 2},
        ):
            plan = make_plan(models["llama"], LLAMA_ENTRIES, recompute=kind, **degrees)
            cases.append((f"llama {kind.value} {degrees}", plan))
    return cases


def other_models(models: dict[str, str]) -> list[tuple[str, Plan]]:
    """Tied embeddings, and a network of convolutions with batch normalisation."""
    cases = []
    for schedule, vpp in PIPELINES:
        for name, entries in (("gpt2", GPT2_ENTRIES), ("cnn", CNN_ENTRIES)):
            plan = make_plan(models[name], entries, pp=2, vpp=vpp, schedule=schedule)
            cases.append((f"{name} {schedule}", plan))
    return cases


def hybrid_cases(models: dict[str, str]) -> list[tuple[str, Plan]]:
    """Two groups of two replicas that shard states."""
    return [
        (
            f"llama hsdp zero{zero} {precision}",
            make_plan(
                models["llama"],
                LLAMA_ENTRIES,
                dp=4,
                dp_replicate=2,
                zero_stage=zero,
                precision=precision,
            ),
        )
        for zero, precision in ((1, "fp32"), (2, "bf16"), (3, "fp32"))
    ]


def fewer_experts_than_replicas(folder: Path) -> tuple[str, Plan]:
    """Experts in one tensor of two rows: four replicas shard another dimension of it."""
    path = folder / "few.json"
    config = config_of("mixtral")
    path.write_text(json.dumps({**config, "num_local_experts": 2, "num_hidden_layers": 4}))
    return "mixtral zero3", make_plan(str(path), LLAMA_ENTRIES, dp=4, zero_stage=3)


def offloaded_cases(processes: int, models: dict[str, str]) -> list[tuple[str, Plan]]:
    """On a CPU they move nothing, and must change nothing."""
    layouts: list[dict[str, object]] = [{"dp": 2, "zero_stage": zero} for zero in (2, 3)]
    if processes == 4:
        layouts = [
            {"pp": 2, "dp": 2, "zero_stage": 3, "schedule": "1f1b"},
            {"dp": 4, "dp_replicate": 2, "zero_stage": 1},
        ]
    return [
        (
            f"gpt2 offload {layout}",
            make_plan(models["gpt2"], GPT2_ENTRIES, optimizer_offload=True, **layout),  # type: ignore[arg-type] # fields by name
        )
        for layout in layouts
    ]


def taking_gradients() -> list[tuple[str, Plan]]:
    """Weights that FSDP2 must leave whole: gradients are taken through them in the forward, or in
    the backward by hooks; and complex ones."""
    entries = {"penalised": 3, "spectrum": 2, "settling": 3, "transformed": 0}
    return [
        (
            f"{name} zero3",
            make_plan(
                f"tests.executor.gradient_zoo:{name}",
                ("", *(f"layers.{i}" for i in range(3 - count, 3) if count)),
                dp=2,
                zero_stage=3,
            ),
        )
        for name, count in entries.items()
    ]


@pytest.mark.parametrize(
    ("processes", "every_pair"),
    [(2, True), (4, False), pytest.param(4, True, marks=pytest.mark.slow)],
)
def test_every_combination_has_the_gradients_of_the_unsplit_model(
    processes: int, every_pair: bool, tmp_path: Path
) -> None:
    models = write_models(tmp_path)
    cases = cases_for(processes, models, every_pair=every_pair)
    recomputed = recompute_cases(processes, models)
    # Full recomputation with ZeRO 3 on four.
    cases += recomputed if every_pair else [recomputed[4]]
    if processes == 2:
        cases += other_models(models) + taking_gradients()
    else:
        cases += hybrid_cases(models) if every_pair else hybrid_cases(models)[:2]
        cases.append(fewer_experts_than_replicas(tmp_path))
    cases += offloaded_cases(processes, models)
    results = run_job(cases, processes, tmp_path)
    assert [r["name"] for r in results] == [name for name, _ in cases], results[-1]
    for result in results:
        assert result["passed"], result
        assert result["worst"] <= TOLERANCE, result
        assert result["checked"] >= 18, result


def bf16_cases(processes: int, models: dict[str, str]) -> list[tuple[str, Plan]]:
    layouts: list[dict[str, object]] = [
        {"pp": processes, "schedule": "1f1b"},
        {"dp": processes, "zero_stage": 0},
        {"dp": processes, "zero_stage": 1},
        {"dp": processes, "zero_stage": 3},
        {"tp": 2, "dp": processes // 2},
    ]
    if processes == 4:
        layouts += [{"pp": 2, "dp": 2, "zero_stage": z, "schedule": "1f1b"} for z in (0, 1, 2, 3)]
        layouts += [{"pp": 2, "tp": 2, "schedule": "gpipe"}]
    else:
        layouts += [{"pp": 2, "vpp": 2, "schedule": "interleaved"}]
    cases = [
        (f"llama {d}", make_plan(models["llama"], LLAMA_ENTRIES, precision="bf16", **d))  # type: ignore[arg-type] # a mix of keywords
        for d in layouts
    ]
    tied = make_plan(
        models["gpt2"],
        GPT2_ENTRIES,
        precision="bf16",
        pp=2,
        dp=processes // 2,
        schedule="1f1b",
        recompute=Recompute.FULL,
    )
    return [*cases, ("gpt2 tied", tied)]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_bf16_keeps_fp32_weights_and_differs_by_rounding_alone(
    processes: int, tmp_path: Path
) -> None:
    """Exact where the same plan computes in fp32; in bf16 as far off as 8 bits of mantissa take it
    (2^-8 per rounding, some tens of roundings deep)."""
    cases = bf16_cases(processes, write_models(tmp_path))
    results = run_job(cases, processes, tmp_path)
    assert [r["name"] for r in results] == [name for name, _ in cases], results[-1]
    for result in results:
        assert result["worst"] <= TOLERANCE, result
        rounded = result["rounded"]
        assert 1e-4 < rounded["worst"] < 0.1, result
        assert rounded["kept"] == ["torch.float32"], result
        piped = "pp" in result["name"] or "gpt2" in result["name"]
        assert rounded["crossing"] == (["torch.bfloat16"] if piped else []), result


def test_weights_tied_between_different_stages_are_summed(tmp_path: Path) -> None:
    """Of three ranks each pair but one shares a weight, so that no two know the same groups."""
    plan = replace(
        make_plan(
            "tests.executor.tiny_models:crossing_ties", ("", "1", "2"), pp=3, schedule="1f1b"
        ),
        tied_parameters=(("0.weight", "1.weight"), ("0.bias", "2.bias")),
    )
    (result,) = run_job([("crossing ties", plan)], 3, tmp_path)
    assert not result.get("error"), result
    assert result["worst"] <= TOLERANCE, result
