"""Imported last by the server of tests/forked.py, so that each process forked from it need not do
what all would do: read the files of devices, prices, frameworks and coefficients, import what a
command imports on its way, and look with its garbage collector through what was imported."""

import gc

from typer.testing import CliRunner

from shardwright.cli import app

for _words in (
    ("catalog", "list"),
    ("plan", "gpt2", "--on", "8xh100-sxm", "--global-batch", "8", "--no-cache", "--json"),
):
    CliRunner().invoke(app, list(_words))
gc.collect()
gc.freeze()
