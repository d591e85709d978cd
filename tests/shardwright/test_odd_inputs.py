"""Impossible inputs: one paragraph, status 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.document import to_json
from profiles.errors import DocumentError, InputError
from profiles.model.loaders import resolve_model
from shardwright.api import load_plan
from shardwright.cli import app

ASKED = ("plan", "llama-3.1-8b", "--on", "2x8xh100-sxm", "--no-cache", "--seq", "4096")
STACK = ("--stack", "megatron-core")


def refused(*arguments: str) -> str:
    """The message of the error that a command raises."""
    found = CliRunner().invoke(app, list(arguments))
    if isinstance(found.exception, InputError):
        return str(found.exception)
    assert found.exit_code == 2, found.output
    return " ".join(found.output.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--global-batch", "9" * 21, *STACK), "--global-batch may be 2,147,483,647 at most"),
        (("--global-batch", "9" * 21), "may be 2,147,483,647 at most"),
        (
            ("--global-batch", "64", *STACK, "--local-workers", "7"),
            "needs --local-steps above 1",
        ),
        (
            ("--global-batch", "64", *STACK, "--wide-layers", "9"),
            "all layers are in bf16 already; give a --precision of fp8, mxfp8, nvfp4",
        ),
        (("--global-batch", "64", *STACK, "--sort", "cost"), "orders the table of a sweep"),
        (
            ("--global-batch", "64", *STACK, "--precision", "nvfp4"),
            "no rate for float4_e2m1fn_x2",
        ),
    ],
)
def test_flags_that_cannot_be_meant(flags: tuple[str, ...], message: str) -> None:
    assert message in refused(*ASKED, *flags)


@pytest.mark.parametrize(
    "command",
    [
        (*ASKED, "--global-batch", "64"),
        (*ASKED, "--global-batch", "64", *STACK),
        ("predict", "--runs", "runs.csv"),
        ("profile", "--quick"),
        ("run", "plan.json"),
    ],
)
def test_an_output_that_cannot_be_is_said_before_the_work(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    place = tmp_path / "file" / "out.json"
    assert f"{place}: cannot be written: {tmp_path}/file is a file, no folder" in refused(
        *command, "-o", str(place)
    )
    assert (tmp_path / "file").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sweeps_folder_that_cannot_be_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "answers"
    two = ("plan", "gpt2,llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "8")
    assert "is a file, no folder" in refused(*two, "-o", str(place))


def test_a_layout_cut_short_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text(
        to_json({"schema": "shardwright/layout@3", "model": "gpt2", "stack": "nanotron"})
    )
    with pytest.raises(DocumentError, match=r"layout\.json: the key '\w+' is missing"):
        load_plan(path)


def test_a_checkpoints_folder_is_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder without a config\.json"):
        resolve_model(str(tmp_path))
    known = resolve_model("llama-3.1-8b").config
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "config.json").write_text(to_json(dict(known or {})))
    assert resolve_model(str(folder)).name == "ours"
    assert resolve_model(str(folder)) == resolve_model(str(folder / "config.json"))
