"""What the benchmark of accelerators asks, and what it makes of the answers."""

from __future__ import annotations

import pytest

from bench.accelerator import cluster_of, line_of, measured, questions


def test_one_device_runs_plans_of_one_rank_and_shares_itself_between_ranks() -> None:
    asked = questions(1)
    assert all(question.shared or question.least == 1 for question in asked)
    assert {question.least for question in asked if question.shared} == {2, 4}


def test_eight_devices_are_asked_two_ways_at_once() -> None:
    names = [question.name for question in questions(8)]
    assert names[-1] == "mixed"
    assert not any(question.shared for question in questions(8))


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "1x8xh100-sxm"),
        ("NVIDIA H100 PCIe", "1x8xh100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", "1x8xa100-sxm-40gb"),
        ("NVIDIA A100-PCIE-40GB", "1x8xa100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "1x8xa100-pcie-80gb"),
        ("NVIDIA GH200 480GB", "1x8xgh200-96gb"),
        ("NVIDIA H200", "1x8xh200-sxm"),
    ],
)
def test_torch_s_names_stand_for_the_catalog_s(name: str, cluster: str) -> None:
    assert cluster_of(name, 8) == cluster


def test_mfu_follows_from_the_seconds_of_a_step() -> None:
    run = {"step_wall_s": 2.0, "ranks": [], "stages": [], "steps": [], "events": [], "machine": ""}
    found = measured(run, {"step_s": 1.0, "mfu": 0.5})
    assert (found["mfu"], found["step_over_predicted"]) == (0.25, 2.0)


def test_a_plan_that_fails_says_why() -> None:
    assert line_of({"name": "tensor", "error": "no"}) == "failed: no"
