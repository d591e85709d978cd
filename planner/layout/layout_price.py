"""`with_layout_price`: an answer's dollars at another price of a device-hour."""

from __future__ import annotations

from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice, LayoutFile
from profiles.sourced import Sourced
from simulator.energy import carbon
from simulator.goodput.lasting import delivered, reliability
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.money import usd_per_million_tokens
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval


def tokens_per_s(run: TrainingRun, step_time_s: Interval) -> Interval:
    """Tokens that a run trains on per second."""
    tokens = run.global_batch * run.seq_len
    return Interval(
        value=tokens / step_time_s.value,
        low=tokens / step_time_s.high,
        high=tokens / step_time_s.low,
    )


def with_layout_price(
    answer: LayoutFile,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutFile:
    """The answer with its dollars at a price, on capacity that fails and is taken back as `inputs`
    say; None takes the dollars out. Which layout is best does not depend on it.

    region   of the grid, for carbon; "" leaves that out. Raises UnknownNameError.
    """
    chosen = answer.chosen
    others = answer.alternatives
    return replace(
        answer,
        chosen=None if chosen is None else priced_choice(chosen, price, inputs, region),
        alternatives=tuple(priced_choice(other, price, inputs, region) for other in others),
    )


def priced_choice(
    choice: LayoutChoice,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutChoice:
    """A layout with its dollars, energy and carbon, as `with_layout_price` says."""
    run, prediction = choice.run, choice.prediction
    lasting = reliability(run.model.parameters, run.degrees.num_devices, run.device, inputs)
    per_s = tokens_per_s(run, prediction.step_time_s)
    cost = usd_per_million_tokens(per_s, run.degrees.num_devices + choice.idle_devices, price)
    kwh = delivered(prediction.kwh_per_million_tokens, lasting.goodput)
    priced = replace(
        prediction,
        price_usd_per_hour=price,
        usd_per_million_tokens=cost,
        reliability=lasting,
        usd_per_million_tokens_delivered=delivered(cost, lasting.goodput),
        kwh_per_million_tokens_delivered=kwh,
        kg_co2e_per_million_tokens_delivered=(
            carbon(kwh, region) if kwh is not None and region else None
        ),
        region=region,
    )
    return replace(choice, prediction=priced)
