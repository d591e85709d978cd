"""Our search beside Calculon's (Isaev et al., SC'23; github.com/calculon-ai/calculon).

The package `calculon` of the package index is another project, so a checkout is asked for:

    git clone https://github.com/calculon-ai/calculon; CALCULON=calculon python -m bench calculon

Calculon runs in an environment of its own (.bench/calculon, made once). Both price GPT-3 175B on
1,024 A100; Calculon is stopped after some seconds, since its search takes hours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.layouts import question, solve

SECONDS = 20.0
LEAST_RATE_RATIO = 10.0  # whole searches: configurations settled a second, ours over theirs
_PYTHON = Path(".bench") / "calculon" / "bin" / "python"
_THEIRS = """
import itertools, json, sys, time
sys.path.insert(0, sys.argv[1])
import calculon
from calculon.llm import *
from calculon.llm.optimal_execution import OptimalExecution
root = sys.argv[1]
app = Llm.Application(calculon.io.read_json_file(root + "/models/gpt3-175B.json"))
system = System(calculon.io.read_json_file(root + "/systems/a100_80g.json"))
count, start = 0, time.process_time()
for tp, pp, kind in itertools.product((8, 4), (8, 16, 4, 32), ("attn_only", "full", "none")):
    dp = Llm.get_data_parallelism(1024, tp, pp)
    batch = OptimalExecution.get_batch_size(dp, 1536)
    found = OptimalExecution.search(False, 1, False, 1024, 1536, "float16", app, system, tp, pp,
        dp, 1, batch, kind, True, "p2p_rs_ag", [True], False, True, True)
    count += found[1]
    if time.process_time() - start > float(sys.argv[2]):
        break
print("RESULT", json.dumps([count, time.process_time() - start]))
"""


def run() -> int:
    """Prints the table; 1 where ours does not settle configurations so many times faster."""
    checkout = os.environ.get("CALCULON")
    if not checkout:
        print("calculon: not run; set CALCULON to a checkout of github.com/calculon-ai/calculon")
        return 0
    if not _PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_PYTHON.parents[1])], check=True)
        subprocess.run(
            [str(_PYTHON), "-m", "pip", "install", "-q", "psutil", "numpy", "pandas"], check=True
        )
    done = subprocess.run(
        [str(_PYTHON), "-c", _THEIRS, str(Path(checkout).resolve()), str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"calculon: did not run: {done.stderr.strip()[-300:]}")
        return 1
    count, seconds = json.loads(lines[0].removeprefix("RESULT "))
    start = time.process_time()
    answer = solve(question("gpt3-175b", "128x8xa100-sxm-80gb", 1536, 2048))
    ours_s = time.process_time() - start
    rate, theirs = answer.considered / ours_s, count / seconds
    print("GPT-3 175B on 1,024 A100: configurations settled per CPU second of a search")
    print(f"  ours      {rate:10,.0f}  all {answer.considered:,} in {ours_s:.1f} s, proven")
    print(f"  Calculon  {theirs:10,.0f}  {count:,} in {seconds:.1f} s, of 11,698,528 in its space")
    print(f"  ratio {rate / theirs:.0f} (must hold {LEAST_RATE_RATIO:.0f})")
    return int(rate / theirs < LEAST_RATE_RATIO)
