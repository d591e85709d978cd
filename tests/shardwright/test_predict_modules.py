"""`predict --modules`: one row per row whatever they hold."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from profiles.errors import DocumentError, UnknownNameError
from shardwright.cli import app
from shardwright.commands.tables.predict_modules import COLUMNS
from shardwright.runs.module_table import read_measured_modules, read_modules

HERE = "tests.shardwright.module_factories"
ROW: dict[str, Any] = {
    "id": "mlp",
    "factory": f"{HERE}:mlp",
    "arguments": json.dumps({"width": 256, "batch": 64}),
    "device": "rtx-3090",
    "devices": "1",
    "precision": "amp-fp16",
    "memory_format": "nchw",
    "framework": "torch 1.12.0 eager",
    "optimizer": "sgd momentum0.9",
}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "modules.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(folder: Path, *rows: dict[str, Any]) -> list[dict[str, str]]:
    output = folder / "out.csv"
    done = CliRunner().invoke(
        app, ["predict", "--modules", str(write(folder, *rows)), "-o", str(output)]
    )
    assert done.exit_code == 0, done.output
    with output.open(encoding="utf-8") as stream:
        found = list(csv.DictReader(stream))
    assert list(found[0]) == list(COLUMNS)
    return found


def test_a_row_has_its_numbers_in_order(tmp_path: Path) -> None:
    (row,) = predicted(tmp_path, ROW)
    assert row["status"] == "ok"
    assert row["fits"] == "1"
    for name in ("step_time", "peak_memory"):
        unit = "s" if name == "step_time" else "gib"
        low, value, high = (float(row[f"{name}{part}_{unit}"]) for part in ("_low", "", "_high"))
        assert 0 < low < value < high


def test_more_work_takes_longer_and_more_memory(tmp_path: Path) -> None:
    large = json.dumps({"width": 256, "batch": 1_000_000})
    small, big = predicted(tmp_path, ROW, {**ROW, "id": "big", "arguments": large})
    assert float(big["step_time_s"]) > 5 * float(small["step_time_s"])
    # 1,000,000 samples x 1024 hidden numbers x 2 bytes alone are 1.9 GiB.
    assert float(big["peak_memory_gib"]) > 1.9


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    huge = json.dumps({"width": 4096, "batch": 1_000_000})
    (row,) = predicted(tmp_path, {**ROW, "arguments": huge})
    assert (row["status"], row["fits"]) == ("ok", "0")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"factory": f"{HERE}:absent"}, "has no 'absent'"),
        ({"factory": "nowhere_at_all:make"}, "cannot import 'nowhere_at_all'"),
        ({"factory": "plain"}, "must be package.module:function"),
        ({"factory": ""}, "is empty"),
        ({"factory": f"{HERE}:raises", "arguments": '{"batch": 2}'}, "no such data set, sorry"),
        ({"factory": f"{HERE}:returns_a_module", "arguments": '{"batch": 2}'}, "must return"),
        ({"factory": f"{HERE}:asks_for_values", "arguments": '{"batch": 2}'}, "forward pass fails"),
        ({"arguments": '{"wide": 3}'}, "unexpected keyword argument 'wide'"),
        ({"arguments": "{width: 3}"}, "is no JSON"),
        ({"arguments": "[1, 2]"}, "must be a JSON object"),
        ({"device": "rtx-3091"}, "Did you mean 'rtx-3090'"),
        ({"devices": "two"}, "is not a whole number"),
        ({"precision": "fp17"}, "unknown precision 'fp17'"),
        ({"memory_format": "hwcn"}, "memory_format 'hwcn' is not known"),
    ],
)
def test_a_bad_row_costs_no_other_its_prediction(
    changes: dict[str, str], said: str, tmp_path: Path
) -> None:
    bad, good = predicted(tmp_path, {**ROW, **changes, "id": "bad"}, ROW)
    assert bad["status"].startswith("unsupported: ")
    assert said in bad["status"]
    assert "\n" not in bad["status"]
    assert bad["step_time_s"] == bad["fits"] == ""
    assert good["status"] == "ok"


def test_silence_is_answered_by_a_stated_default(tmp_path: Path) -> None:
    silent = {name: ROW[name] for name in ("id", "factory", "arguments", "device")}
    (row,) = predicted(tmp_path, silent)
    assert row["status"] == "ok"
    for words in ("taken as fp32", "taken as torch", "taken as Adam"):
        assert words in row["defaults"]


def test_kernels_that_too_few_measured_steps_have_widen_the_interval(tmp_path: Path) -> None:
    batch = json.dumps({"batch": 4})
    images, volumes, speech = predicted(
        tmp_path,
        {**ROW, "factory": f"{HERE}:convolutions", "arguments": batch},
        {**ROW, "id": "volumes", "factory": f"{HERE}:volumes", "arguments": batch},
        {**ROW, "id": "speech", "factory": f"{HERE}:recurrence", "arguments": batch},
    )
    assert "too few measured steps" not in images["defaults"]
    assert "too few measured steps have conv 3-d" in volumes["defaults"]
    assert "too few measured steps have recurrence" in speech["defaults"]
    width = [
        float(row["step_time_high_s"]) / float(row["step_time_low_s"]) for row in (images, volumes)
    ]
    assert width[1] > 1.5 * width[0]


def test_what_a_compiler_joins_widens_the_interval(tmp_path: Path) -> None:
    convolutions = {
        **ROW,
        "factory": f"{HERE}:convolutions",
        "arguments": json.dumps({"batch": 4096}),
    }
    eager, compiled = predicted(
        tmp_path,
        {**convolutions, "framework": "torch 2.4 eager"},
        {**convolutions, "id": "compiled", "framework": "torch 2.4 compile"},
    )
    assert "too few" not in eager["defaults"]
    assert "too few measured steps are compiled and have batch norm" in compiled["defaults"]
    assert float(compiled["step_time_high_s"]) / float(compiled["step_time_s"]) > 1.03 * (
        float(eager["step_time_high_s"]) / float(eager["step_time_s"])
    )


def test_factories_beside_the_table_are_found(tmp_path: Path) -> None:
    source = Path(__file__).with_name("module_factories.py").read_text(encoding="utf-8")
    (tmp_path / "beside_the_table.py").write_text(source, encoding="utf-8")
    (row,) = predicted(tmp_path, {**ROW, "factory": "beside_the_table:mlp"})
    assert row["status"] == "ok"


def test_the_exit_codes(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["predict", "--modules", str(tmp_path / "absent.csv")]).exit_code != 0
    with pytest.raises(UnknownNameError, match="unknown column 'factorie'"):
        read_modules(write(tmp_path, {"id": "a", "factorie": "x", "device": "t4"}))
    with pytest.raises(DocumentError, match="is the id of line 2 already"):
        read_modules(write(tmp_path, ROW, ROW))
    both = runner.invoke(app, ["predict", "plan.json", "--modules", "table.csv"])
    assert both.exit_code == 2


def test_measured_columns_are_for_comparing_alone(tmp_path: Path) -> None:
    path = write(tmp_path, {**ROW, "family": "mlp", "step_time_s": "0.5", "oom_batch": "96"})
    (row,) = read_modules(path)
    assert not hasattr(row, "step_time_s")
    (measured,) = read_measured_modules(path)
    assert (measured.step_time_s, measured.peak_memory_gib, measured.oom_batch) == (0.5, None, 96)


def test_validate_compares_by_family_device_and_precision(tmp_path: Path) -> None:
    (guess,) = predicted(tmp_path, ROW)
    step_s = float(guess["step_time_s"])
    rows = [
        {
            **ROW,
            "family": "mlp",
            "step_time_s": step_s / 1.1,
            "peak_memory_gib": "",
            "oom_batch": "",
        },
        {
            **ROW,
            "id": "next",
            "family": "mlp",
            "step_time_s": step_s / 0.9,
            "oom_batch": "40000000",
        },
        {**ROW, "id": "bad", "family": "other", "device": "rtx-3091", "step_time_s": "1"},
    ]
    page = tmp_path / "page.md"
    table = str(write(tmp_path, *rows))
    done = CliRunner().invoke(app, ["validate", "--modules", table, "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    # Errors of +10 % and -10 %, both inside; the batch that did not fit is said not to.
    assert "| mlp | 2 | 2 | 10.0 % | 10.0 % |" in text
    assert "| 100.0 % | - | 100.0 % (1) |" in text
    for name in ("rtx-3090 | 2", "rtx-3091 | 1", "amp-fp16 | 3", "other | 1 | 0"):
        assert f"| {name}" in text
    assert "1: unsupported: unknown device 'rtx-3091'" in text
    assert CliRunner().invoke(app, ["validate", table, "--modules", table]).exit_code == 2
