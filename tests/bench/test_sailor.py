"""Sailor's runs: what files mean, what is computed from them, and how near it comes."""

import copy
import json
import math
import shutil
from pathlib import Path

import pytest

from bench.command import main
from bench.sailor import table as sailor
from bench.sailor.files import Curve, Group, Measurements, Run
from bench.sailor.prediction import MODELS, predict_run
from bench.sailor.runs import read_runs
from bench.sailor.table import mean_absolute_percent, sailor_rows, table
from profiles.errors import InputError, UnknownNameError

FOLDER = Path(__file__).parents[3] / "shared" / "yardsticks" / "sailor"
needs_runs = pytest.mark.skipif(not FOLDER.is_dir(), reason="no shared/yardsticks/sailor")


@pytest.fixture(scope="module")
def rows():
    return sailor_rows(FOLDER)


@needs_runs
def test_open_runs_are_within_the_target(rows):
    assert len(rows) == 13
    assert mean_absolute_percent([row.error for row in rows]) <= 8.0
    mixed = [row for row in rows if row.run.mixed]
    assert len(mixed) == 4
    assert mean_absolute_percent([row.error for row in mixed]) <= 8.0


@needs_runs
def test_reduction_over_ethernet(rows):
    # Ring over 1 Gbit/s: the two data-parallel runs on mixed devices, 22 s each.
    for row in rows:
        if row.run.name.startswith("mit/") and row.run.num_replicas > 1:
            assert row.prediction.reduction_s == pytest.approx(row.run.reduction_s, rel=0.12)


@needs_runs
def test_state_is_less_than_measured_memory(rows):
    assert all(row.prediction.state_bytes < row.run.memory_bytes for row in rows)


@needs_runs
def test_command(capsys, tmp_path):
    for name in ("layer_profiles", "multizone_bandwidths_het", "intra_node_bandwidths"):
        shutil.copy(FOLDER / f"{name}.json", tmp_path)
    few = tmp_path / "few.json"
    few.write_text(json.dumps(json.loads((FOLDER / "runs.json").read_text())[3:4]))
    assert (
        main(sailor.add_arguments, sailor.solve_command, None, [str(tmp_path), "--runs", str(few)])
        == 0
    )
    printed = capsys.readouterr().out
    assert "mean absolute error, 1 all runs: 12.7 %; bare 1F1B 12.1 %" in printed


def test_missing_folder_is_named(capsys, tmp_path):
    assert main(sailor.add_arguments, sailor.solve_command, None, [str(tmp_path / "nowhere")]) == 2
    assert "name the one that holds Sailor's runs.json" in capsys.readouterr().err


# One model of an embedding, two transformer layers and an end, on a made-up node of two devices.
LAYERS = {"0": [1.0, 0.0, 0.5], "1": [2.0, 4.0, 0.5], "2": [2.0, 4.0, 0.5], "3": [1.0, 2.0, 0.5]}
GIGABYTE_PER_S = [[0.0, 0.0, 1.0], 1e9]


def measurements(model="OPT-350", *, layers=None, device="X"):
    link = {"z": {device: {"2": GIGABYTE_PER_S}}}
    return Measurements(
        profiles={model: {device: {"1": {"2": layers or LAYERS}}}},
        between={"z": {device: {"2": link}}},
        within={device: {"2": GIGABYTE_PER_S}},
        folder="made-up",
    )


def run(layers, replicas, *, microbatches=1, nodes=None):
    group = Group(device="X", devices_per_node=2, zone="z", tp=2)
    return Run(
        name="made-up",
        num_nodes=nodes or len(layers) * replicas,
        microbatch_size=1,
        global_batch_size=microbatches * replicas,
        layers=layers,
        groups=((group,) * replicas,) * len(layers),
        step_s=1.0,
        reduction_s=0.0,
        memory_bytes=0.0,
    )


def test_one_device_is_the_sum_of_its_layers():
    # 3 micro-batches of 16 s and an update of 0.5 s.
    found = predict_run(run(((0, 1, 2, 3),), 1, microbatches=3), measurements())
    assert found.step_s == 48.5
    assert found.bare_s == 48.0


def test_pipeline_by_hand():
    # Stage 0: F 3, B 4; stage 1: F 3, B 6. A message of 2048 x 1024 x 4 bytes at 1 GB/s and its
    # gathering (the other half, 1 GB/s) are c = 8.39 ms and c / 2:
    # F0, c, c/2, F1, B1, c, c/2, B0, then the update.
    c = 2048 * 1024 * 4 / 1e9
    found = predict_run(run(((0, 1), (2, 3)), 1), measurements())
    assert found.step_s == pytest.approx(3 + 3 + 6 + 4 + 2 * 1.5 * c + 0.5)


def test_messages_block_both_ends():
    # Stage 1 is the slower one and never idle: F0, then for each of 100 micro-batches c (receives),
    # c / 2 (gathers), F 3, B 6, c (sends); then stage 0 gathers, B0, and the update.
    c, m = 2048 * 1024 * 4 / 1e9, 100
    found = predict_run(run(((0, 1), (2, 3)), 1, microbatches=m), measurements())
    assert found.step_s == pytest.approx(3 + m * (9 + 2.5 * c) + c / 2 + 4 + 0.5)


def test_reduction_is_a_ring():
    # 2 (n - 1) / n of the gradients of both halves at 1 GB/s together.
    shape = MODELS["OPT-350"]
    values = 2 * sum(shape.layer_parameters(layer, 3, 2) for layer in range(4))
    found = predict_run(run(((0, 1, 2, 3),), 4), measurements())
    assert found.reduction_s == pytest.approx(2 * 3 / 4 * 4 * values / 1e9)
    assert found.step_s == pytest.approx(16.0 + found.reduction_s + 0.5)


def test_parameters_are_those_of_sailors_models():
    # params_floats of Sailor's llm_info.json: embedding, layer, head of OPT-350 on 1 and 8 devices.
    opt, neo = MODELS["OPT-350"], MODELS["GPT-Neo-2.7"]
    assert [opt.layer_parameters(n, 25, 1) for n in (0, 1, 25)] == [53608448, 12596224, 51513344]
    assert [opt.layer_parameters(n, 25, 8) for n in (0, 1, 25)] == [8650752, 1579904, 6555648]
    assert [neo.layer_parameters(n, 33, 4) for n in (0, 1, 33)] == [37683200, 19680640, 5120]


def test_bandwidth_is_a_parabola_in_log2_of_megabytes():
    curve = Curve(square=-1.0, slope=2.0, constant=3.0)
    assert curve.bytes_per_s(4e6) == pytest.approx((-4 + 4 + 3) * 1e9)
    assert curve.bytes_per_s(1e12) == curve.bytes_per_s(2.0**30)


def test_unknown_things_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown micro-batch '3'"):
        measurements().layer_times("OPT-350", "X", 3, 2)
    with pytest.raises(InputError, match=r"5 layers on X fit 0 profiled models"):
        predict_run(run(((0, 1, 2, 3, 4),), 1), measurements())
    rows = [{"pipeline_list": [{}, {}]}]
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match=r"runs.json\[0\]: 2 pipelines"):
        read_runs(tmp_path / "runs.json")


RUN = {
    "id": "one", "N": 1, "mbs": 1, "gbs": 4, "real": 2.0,
    "pipeline_list": [{
        "num_stages": 1, "dp": [1], "layers_per_stage": [[0, 1]],
        "tmp_per_stage": [[[[["X", 2, "z"]], 2]]],
    }],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("mbs",), 0, r"runs.json\[0\].mbs: found 0; give a whole number of 1 or more"),
        (("gbs",), math.inf, r"gbs: found inf; give a whole number"),
        (("real",), math.nan, r"real: found nan; give a number above 0"),
        (("pipeline_list",), None, r"pipeline_list: found nothing; give a list"),
        (
            ("pipeline_list", 0, "layers_per_stage", 0, 0),
            -1,
            r"layers_per_stage\[0\]\[0\]: found -1",
        ),
        (("pipeline_list", 0, "layers_per_stage", 0), [], r"stage 0 has no layer"),
        (("pipeline_list", 0, "tmp_per_stage", 0, 0), 7, r"found 7; give a list of 2 entries"),
        (("pipeline_list", 0, "tmp_per_stage", 0, 0, 0, 0, 0), 3, r"found 3; give a text"),
    ],
)
def test_a_wrong_entry_of_a_run_is_named(tmp_path, key, value, message):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([RUN]))
    assert read_runs(path)[0].global_batch_size == 4
    changed = copy.deepcopy(RUN)
    holder = changed
    for step in key[:-1]:
        holder = holder[step]
    holder[key[-1]] = value
    path.write_text(json.dumps([changed]))
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_no_run_and_a_profile_that_is_none(tmp_path):
    (tmp_path / "runs.json").write_text("[]")
    with pytest.raises(InputError, match="holds no run"):
        read_runs(tmp_path / "runs.json")
    m = measurements()
    m.profiles["OPT-350"]["X"]["1"]["2"] = {"0": [1.0, math.nan, 0.5]}
    with pytest.raises(InputError, match="give 3 finite numbers of 0 or more"):
        m.layer_times("OPT-350", "X", 1, 2)


@needs_runs
def test_table_has_a_line_per_run(rows):
    lines = table(rows).splitlines()
    assert all(any(line.startswith(row.run.name) for line in lines) for row in rows)
