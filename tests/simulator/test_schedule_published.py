"""Bubble rates that were published, against the timeline of our schedules.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241: table 5 from the times printed in
table 9; table 8, whose times are not printed, from times solved out of its ZB-H1 and ZB-H2 columns.
Formulas of the DeepSeek-V3 report (arXiv 2412.19437, table 2) and of the README of
github.com/sail-sg/zero-bubble-pipeline-parallelism.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import longest_rank_s, simulate
from tests.simulator.bubble_rate import bubble_rate, busiest_rank_s

FILE = Path(__file__).parents[3] / "shared" / "truth" / "bubbles.csv"

# Table 9: T_F, T_B, T_W, T_comm in milliseconds by model and number of micro-batches.
TIMES = {
    ("1.5B", 24): (18.522, 18.086, 9.337, 0.601),
    ("1.5B", 32): (18.513, 18.086, 9.331, 0.626),
    ("1.5B", 64): (18.546, 18.097, 9.321, 0.762),
    ("6.2B", 24): (29.718, 29.444, 19.927, 0.527),
    ("6.2B", 32): (29.802, 29.428, 19.530, 0.577),
    ("6.2B", 64): (29.935, 29.621, 19.388, 0.535),
    ("14.6B", 48): (11.347, 11.248, 8.132, 0.377),
    ("14.6B", 64): (11.307, 11.254, 8.101, 0.379),
    ("14.6B", 128): (11.325, 11.308, 8.109, 0.378),
    ("28.3B", 96): (10.419, 10.207, 7.715, 0.408),
    ("28.3B", 128): (10.408, 10.204, 7.703, 0.408),
    ("28.3B", 256): (10.402, 10.248, 7.698, 0.460),
}
# Table 3: layers (two more places are taken by the embedding and the loss), heads, hidden size.
MODELS = {
    "1.5B": (22, 24, 2304),
    "6.2B": (30, 32, 4096),
    "14.6B": (46, 40, 5120),
    "28.3B": (62, 48, 6144),
}
SEQUENCE = 1024
OURS = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-1p": "zb-1p",
    "ZB-2p": "zb-2p",
    "ZB-V": "zbv",
}
PRINTED = 0.5e-4 + 1e-9  # four digits


def rows_of(table):
    if not FILE.exists():
        print(f"skipped: {FILE} is not there")
        pytest.skip(f"{FILE} is not there")
    with FILE.open() as file:
        return [row for row in csv.DictReader(file) if row["table"] == table]


def kept_for_weights(model):
    """M_W / M_B of table 1: 32 s b h over s b (34 h + 5 a s)."""
    _, heads, hidden = MODELS[model]
    return 32 * hidden / (34 * hidden + 5 * heads * SEQUENCE)


def stages_per_rank(row):
    """Interleaved "always uses the maximum number of chunks": a layer each (section 5.1)."""
    if row["schedule"] == "1F1B-I":
        return (MODELS[row["model"]][0] + 2) // int(row["stages"])
    return 2 if row["schedule"] == "ZB-V" else 1


def rate(row, times):
    """Our (bubble rate, cost) of a row, for T_F, T_B, T_W of a rank and T_comm."""
    f, b, w, send = times
    p, v = int(row["stages"]), stages_per_rank(row)
    durations = Durations.even(
        p * v, forward_s=f / v, backward_input_s=b / v, backward_weight_s=w / v, send_s=send
    )
    searched = {}
    if row["schedule"] in ("ZB-1p", "ZB-2p"):
        kept = kept_for_weights(row["model"])
        searched = {"durations": durations, "kept_for_weights": kept}
    schedule = build_schedule(
        OURS[row["schedule"]],
        num_ranks=p,
        num_microbatches=int(row["microbatches"]),
        stages_per_rank=v,
        **searched,
    )
    timeline = simulate(schedule, durations)
    return bubble_rate(timeline), longest_rank_s(timeline)


def largest(errors):
    return max(map(abs, errors))


@pytest.mark.parametrize("schedule", ["1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"])
def test_table_5_to_the_last_digit(schedule):
    errors = [
        rate(row, TIMES[row["model"], int(row["microbatches"])])[0] - float(row["bubble_rate"])
        for row in rows_of("Table 5")
        if row["schedule"] == schedule
    ]
    assert len(errors) == 12
    assert largest(errors) <= PRINTED


def test_table_5_interleaved_is_p_sends_from_ours():
    # Theirs is less by p T_comm in all twelve rows. Why is not known: the paper does not give its
    # interleaved order, and ours is torch's and Megatron's. All sends are priced in ours.
    errors, unexplained = [], []
    for row in rows_of("Table 5"):
        if row["schedule"] != "1F1B-I":
            continue
        times = TIMES[row["model"], int(row["microbatches"])]
        ours, cost = rate(row, times)
        less = int(row["stages"]) * times[3]
        errors.append(ours - float(row["bubble_rate"]))
        fewer_sends = (ours * cost - less) / (cost - less)
        unexplained.append(fewer_sends - float(row["bubble_rate"]))
    assert len(errors) == 12
    assert largest(errors) <= 0.0036
    assert largest(unexplained) <= PRINTED


def solved_times(rows):
    """T_F, T_B, T_W, T_comm with T_F + T_B + T_W = 1, from the rates of ZB-H1 and ZB-H2.

    Their bubbles over p - 1 are T_F + T_B - T_W + 4 T_comm and T_F + T_B - 2 T_W + 2 T_comm, which
    table 5 confirms. T_F = T_B: table 9 has them within 3 %, and no row depends on it.
    """
    turns = {}
    for row in rows:
        if row["schedule"] in ("ZB-H1", "ZB-H2"):
            r = float(row["bubble_rate"])
            turns[row["schedule"]] = (
                int(row["microbatches"]) * r / (1 - r) / (int(row["stages"]) - 1)
            )
    w = (1 + turns["ZB-H1"] - 2 * turns["ZB-H2"]) / 4
    send = (turns["ZB-H1"] - 1 + 2 * w) / 4
    return ((1 - w) / 2, (1 - w) / 2, w, send)


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("ZB-H1", 1e-4),  # in sample: the times are solved from these two columns
        ("ZB-H2", 1e-4),
        ("1F1B", 5e-4),  # the solution carries the rounding of two rates
        ("1F1B-I", 5.5e-3),  # p sends, as in table 5
        # Theirs is searched for its times, ours is the order of figure 8.
        ("ZB-V", 3.5e-3),
    ],
)
def test_table_8(schedule, most):
    cases = {}
    for row in rows_of("Table 8"):
        cases.setdefault((row["model"], row["microbatches"]), []).append(row)
    errors = []
    for rows in cases.values():
        times = solved_times(rows)
        row = next(row for row in rows if row["schedule"] == schedule)
        errors.append(rate(row, times)[0] - float(row["bubble_rate"]))
    assert len(errors) == 9
    assert largest(errors) <= most


ALIKE = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}


def even_bubble(name, p, m, times=ALIKE):
    """(bubble of the longest rank, its cost) where a rank's stages together take `times`."""
    v = 2 if name in ("zbv", "v-half", "v-min") else 1
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    stages = schedule.num_stages
    parts = {key: value / v for key, value in times.items()}
    timeline = simulate(schedule, Durations.even(stages, **parts))
    return longest_rank_s(timeline) - busiest_rank_s(timeline), longest_rank_s(timeline)


def test_formulas_of_the_readme():
    rows = rows_of("README schedule comparison")
    wanted = {row["schedule"]: row["bubble_rate"] for row in rows}
    assert wanted == {
        "1F1B": "B=(p-1)/(m+p-1)",
        "ZB1P": "B/3",
        "ZB2P": "0",
        "ZBV": "0",
        "V-Half": "B/2",
        "V-Min": "2B/3+O(n) overhead",
    }
    for p, m in ((4, 12), (8, 24), (8, 64), (12, 48)):
        bubble_1f1b, cost = even_bubble("1f1b", p, m)
        assert bubble_1f1b / cost == pytest.approx((p - 1) / (m + p - 1))
        # The README divides the rate; the bubble itself is what is divided, as table 2 of the paper
        # has it: (p - 1) (T_F + T_B - T_W) of (p - 1) (T_F + T_B + T_W).
        assert even_bubble("zb-1p", p, m)[0] == pytest.approx(bubble_1f1b / 3)
        assert even_bubble("zb-2p", p, m)[0] == pytest.approx(0)
        assert even_bubble("zbv", p, m)[0] == pytest.approx(0)
        # Half and two thirds are what they tend to with p, from below.
        assert 0.25 * bubble_1f1b < even_bubble("v-half", p, m)[0] <= bubble_1f1b / 2
        assert 0.5 * bubble_1f1b < even_bubble("v-min", p, m)[0] <= 2 * bubble_1f1b / 3


def test_formulas_of_deepseek():
    rows = rows_of("Table 2")
    wanted = {row["schedule"]: row["bubble_rate"] for row in rows}
    assert wanted == {
        "1F1B": "(PP-1)(F+B)",
        "ZB1P": "(PP-1)(F+B-2W)",
        "DualPipe": "(PP/2-1)(F&B+B-3W)",
    }
    # B is the full backward, here 1 + 0.75.
    f, full, w = 1.0, 1.75, 0.75
    times = {"forward_s": f, "backward_input_s": full - w, "backward_weight_s": w}
    for p, m in ((4, 12), (8, 24), (16, 32)):
        assert even_bubble("1f1b", p, m, times)[0] == pytest.approx((p - 1) * (f + full))
        zb1p = (p - 1) * (f + full - 2 * w)
        assert even_bubble("zb-1p", p, m, times)[0] == pytest.approx(zb1p)
        # F&B = F + B: a forward's output leaves before the backward beside it has ended, so that
        # ours is less by (PP/2-1) (B-W). As whole pairs: test_schedule_dualpipe.py.
        dualpipe = (p / 2 - 1) * (f + full + full - 3 * w)
        less = (p / 2 - 1) * (full - w)
        assert even_bubble("dualpipe", p, m, times)[0] == pytest.approx(dualpipe - less)
