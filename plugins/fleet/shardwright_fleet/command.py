"""`shardwright fleet`: several training runs on shared clusters over time."""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from profiles.document import encode, to_json, write_text
from profiles.errors import InfeasibleError
from profiles.units import parse_quantity
from shardwright.console.flags import Json, Prices, Quiet
from shardwright.console.output import (
    Heartbeat,
    need_room_for,
    note,
    print_json,
    print_price_notes,
    show,
    write_or_print,
)
from shardwright.requests.local_paths import answer_cache
from shardwright.requests.provenance import provenance

EXAMPLES = (
    "Examples:\n\n  shardwright fleet jobs.toml\n\n  shardwright fleet jobs.toml -o plans --html "
    "fleet.html --buy 4x8xb200"
)
_TIME_LIMIT = "60s"
FILE = "fleet.json"
"""Name of the file written to the folder of -o."""


def fleet(
    jobs: Annotated[Path, typer.Argument(help="TOML file of clusters and jobs (docs/fleets.md)")],
    output: Annotated[
        Path | None, typer.Option("-o", help="folder for fleet.json and fleet.html")
    ] = None,
    json_output: Json = False,
    html: Annotated[Path | None, typer.Option("--html", help="write an offline HTML page")] = None,
    buy: Annotated[
        str,
        typer.Option(
            "--buy", help="clusters that could be rented in addition: 4x8xb200, or a list"
        ),
    ] = "",
    owning: Annotated[
        Path | None,
        typer.Option(
            "--owning", help="costs of owning devices (docs/prices.md): says which clusters to buy"
        ),
    ] = None,
    prices: Prices = None,
    time_limit: Annotated[
        str, typer.Option("--time-limit", help="limit of the whole command")
    ] = _TIME_LIMIT,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="number of processes; 0 for one per core")
    ] = 0,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="use the cache of step times")
    ] = True,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """`shardwright fleet`."""
    # Here, since --help needs none of them.
    from profiles.hardware.prices.owning import read_owning
    from profiles.hardware.prices.price_file import offers_with
    from shardwright.requests.price_request import price_notes
    from shardwright_fleet.file import read_fleet
    from shardwright_fleet.own_or_rent import own_or_rent
    from shardwright_fleet.page import fleet_html
    from shardwright_fleet.prices import PhasePrices
    from shardwright_fleet.report import fleet_report
    from shardwright_fleet.solved import rented_cluster, solve_question

    page = html or (None if output is None else output / "fleet.html")
    file = None if output is None else output / FILE
    need_room_for(page, file)
    offers = None if prices is None else offers_with(prices)
    limit_s = parse_quantity(time_limit, "time", where="--time-limit")
    owned = None if owning is None else read_owning(owning)
    question, assumed = read_fleet(jobs, offers=offers)
    beside = tuple(rented_cluster(each.strip(), offers) for each in buy.split(",") if each.strip())
    priced = PhasePrices(
        folder=answer_cache() / "fleet" if cache else None, workers=workers or os.cpu_count() or 1
    )
    with Heartbeat("planning the fleet", quiet=quiet or json_output):
        answer = solve_question(
            question, priced, clock=time.monotonic, limit_s=limit_s, buy=beside, seed=seed
        )
    answer = replace(answer, assumptions=(*assumed, *answer.assumptions))
    if owned is not None:
        both = zip(question.clusters, answer.clusters, strict=True) if answer.runs else ()
        answer = replace(
            answer,
            owning=tuple(
                own_or_rent(
                    cluster,
                    owned,
                    open_device_hours=use.open_device_hours,
                    used_device_hours=use.device_hours,
                    offers=offers,
                )
                for cluster, use in both
            ),
        )
    today = datetime.date.today().isoformat()
    told = [
        said
        for cluster in (*question.clusters, *beside)
        if cluster.kind
        for said in price_notes(
            cluster.parts[cluster.nodes], cluster.kind, today=today, offers=offers
        )
    ]
    data = {"schema": "shardwright/fleet-answer@1", **encode(answer)}
    if file is not None:
        write_text(file, to_json(data | {"provenance": provenance()}))
        note(f"written: {file}")
    if page is not None and answer.runs:
        write_or_print(page, fleet_html(answer, provenance=provenance()))
    if json_output:
        print_json(data | {"price_notes": told})
    else:
        show(fleet_report(answer))
        print_price_notes(told)
    if answer.status == "infeasible":
        raise InfeasibleError("no schedule keeps every hard deadline: " + "; ".join(answer.binds))
