"""Small sizing questions that several tests ask."""

from planner.layout.layout_question import LayoutSolver
from planner.sizing.size_question import TOKENS, DeviceChoice, SizeQuestion, StackChoice
from planner.sizing.sizing_search import size_device
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.loaders import resolve_model
from profiles.sourced import SourcedRange
from simulator.goodput.reliability_inputs import DEFAULT
from simulator.values.prediction import Interval

PUE = SourcedRange(value=1.2, low=1.1, high=1.3, source="assumed here", date="2026-11-22")


def choice(device="h100-sxm", node=8, fewest=1, most=6, usd=3.0, widths=None):
    return DeviceChoice(
        asked=device,
        device=device,
        node_devices=node,
        widths=widths or (node,),
        fewest=fewest,
        most=most,
        usd_per_hour=Interval(value=usd, low=usd, high=usd),
        price_words="$3, given",
    )


def size_question(model="gpt2", tokens=1e11, minimise="cost", stacks=("megatron-core",),
                  batches=(64,), seq=1024, choices=(), **limits):  # fmt: skip
    return SizeQuestion(
        name=model,
        model=figures_of_config(resolve_model(model).config, model),
        choices=choices or (choice(),),
        stacks=tuple(StackChoice(name=name) for name in stacks),
        tokens=tokens,
        minimise=TOKENS if tokens is None else minimise,
        batches=batches,
        seq_len=seq,
        pue=PUE,
        region="USA",
        reliability=DEFAULT,
        **limits,
    )


def sized(question, picked=None, **more):
    solver = LayoutSolver(**{"clock": lambda: 0.0, **more})
    return size_device(question, picked or question.choices[0], solver)
