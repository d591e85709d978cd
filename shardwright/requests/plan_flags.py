"""What `plan` is given, as typed, read into a `PlanRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.axes import AXES, Axes, axes_of
from planner.run_option import RequestedOptions
from planner.tolerances import DEFAULT_TIME_LIMIT_S
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.energy import grid_carbon
from profiles.hardware.prices.price_file import offers_with
from profiles.model.loaders import resolve_model
from profiles.units import parse_probability, parse_quantity
from shardwright.requests.named_model import described_of, sample_of
from shardwright.requests.plan_options import OPTION_FLAGS, need_stack, requested_options
from shardwright.requests.plan_request import PlanRequest
from shardwright.requests.price_request import price_notes
from shardwright.requests.usual_batch import UsualBatch, usual_batch
from simulator.goodput.reliability_inputs import inputs_at, read_reliability
from simulator.training_run.run.low_bits import OPTIMIZERS, USUAL_OPTIMIZER


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is fixed, restricted or left to the search."""

    axes: Axes
    options: RequestedOptions


def choices_of(given: Mapping[str, Any]) -> Choices:
    """The axes and options of flags, by the names of `plan`'s parameters; None where not typed.

    Raises InputError, and where an option is typed that needs --stack.
    """
    axes = axes_of({name: given.get(name) for name in AXES})
    options = typed_options(given)
    precision = given.get("precision") or ""
    if given.get("stack"):
        return Choices(axes=axes, options=requested_options(options, precision))
    lora = given.get("lora") or 0
    need_stack(options | {"lora": str(lora) if lora else None}, precision)
    return Choices(axes=axes, options=RequestedOptions())


def typed_options(given: Mapping[str, Any]) -> dict[str, str | None]:
    """The options of flags by their names, None where not typed; an optimizer is one where its
    states are of few bits, which our executor has not."""
    return {name: given.get(name) for name in OPTION_FLAGS} | {
        "optimizer": _layout_optimizer(given)
    }


def plan_request(given: Mapping[str, Any], *, profile: Path, today: str) -> PlanRequest:
    """One question of `plan`.

    given    by the names of `plan`'s parameters, None or "" where a flag was not typed: texts, but
             counts for model sizes (`global_batch`, `seq`, `lora`, `seed`) and paths for files;
             without a batch the usual one of the model (usual_batch.py)
    profile  what `--on local` names;  today  the ISO day, for the age of prices

    Raises InputError, UnknownNameError, UnitError, DocumentError.
    """
    choices = choices_of(given)
    batch, assumed = given.get("global_batch"), tuple[str, ...]()
    if batch is None:
        usual = _usual_batch(given)
        batch, assumed = usual.sequences, (usual.words,)
    offers = None if given.get("prices") is None else offers_with(given["prices"])
    price = given.get("price") or "on-demand"
    limit_s = DEFAULT_TIME_LIMIT_S
    if given.get("time_limit"):
        limit_s = parse_quantity(given["time_limit"], "time", where="--time-limit")
    cluster = get_cluster(given["on"], local=profile)
    risk = given.get("fit_risk")
    reliability = given.get("reliability")
    return PlanRequest(
        model=given["model"],
        on=given["on"],
        cluster=cluster,
        global_batch=batch,
        seq=given.get("seq"),
        axes=choices.axes,
        options=choices.options,
        stack=given.get("stack") or "",
        pareto=str(given.get("pareto") or ""),
        fit_risk=(
            None
            if risk is None
            else parse_probability(risk, where="--fit-risk", example="10%, or 0.1")
        ),
        calibration=given.get("calibration"),
        lora_rank=given.get("lora") or 0,
        precision=given.get("precision") or "",
        optimizer=USUAL_OPTIMIZER if _layout_optimizer(given) else _optimizer(given),
        solver=str(given.get("solver") or "auto"),
        seed=given.get("seed") or 0,
        time_limit_s=limit_s,
        price=price,
        offers=offers,
        price_told=price_notes(cluster, price, today=today, offers=offers),
        reliability=inputs_at(price) if reliability is None else read_reliability(reliability),
        region=grid_carbon.grid_of(given.get("region") or grid_carbon.WORLD).region,
        assumed=assumed,
    )


def _usual_batch(given: Mapping[str, Any]) -> UsualBatch:
    """The batch of a model whose samples are sequences of tokens; raises InputError for others."""
    model, seq = given["model"], given.get("seq")
    if resolve_model(model).factory or sample_of(model, seq).counted_in != "tokens":
        raise InputError(
            f"give --global-batch: {model} has no published batch of tokens to take as default"
        )
    described = described_of(model, seq)
    return usual_batch(
        model,
        described.figures,
        described.sample.sequence_length,
        adapters=bool(given.get("lora")),
    )


def _optimizer(given: Mapping[str, Any]) -> str:
    return str(given.get("optimizer") or USUAL_OPTIMIZER)


def _layout_optimizer(given: Mapping[str, Any]) -> str | None:
    asked = _optimizer(given)
    return asked if asked in OPTIMIZERS and asked != USUAL_OPTIMIZER else None
