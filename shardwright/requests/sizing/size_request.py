"""A `SizeQuestion` from flags: the model's figures, the devices' prices, and assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.axes import Axes
from planner.run_option import RequestedOptions
from planner.sizing.size_question import TOKENS, DeviceChoice, SizeQuestion, StackChoice
from planner.space import EXECUTOR
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster, get_device, get_link, node_design
from profiles.hardware.energy.grid_carbon import WORLD, grid_of
from profiles.hardware.energy.power_draw import power_draw
from profiles.hardware.prices.offer import KINDS, Offer, shipped_offers
from profiles.hardware.prices.price_file import offers_with
from profiles.hardware.prices.price_table import STALE_DAYS, DevicePrice, price_or_relatives
from profiles.model.figures.transformer import Transformer
from profiles.sourced import SourcedRange
from profiles.units import format_count
from shardwright.options.size_options import SizeOptions
from shardwright.requests.compared_frameworks import compared_frameworks, preference
from shardwright.requests.named_model import described_of
from shardwright.requests.plan_choices import ANY_STACK, first_precision, named_stacks
from shardwright.requests.plan_request import default_precision
from shardwright.requests.plan_route import executor_space
from shardwright.requests.sizing.kept_bytes import run_storage
from shardwright.requests.sizing.size_flags import (
    MOST_DEVICES,
    NamedDevice,
    Range,
    SizeFlags,
    devices_of,
)
from shardwright.requests.usual_batch import notes_on_batch, usual_batch
from simulator import scaling_law
from simulator.goodput.reliability_inputs import DEFAULT, SPOT, ReliabilityInputs, read_reliability
from simulator.training_run.framework.framework import (
    framework_of_device,
    load_framework,
    offered_frameworks,
)
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.values.prediction import Interval

# Rented on demand by at least eight of the providers of the shipped prices (2026-11-28).
_USUAL_DEVICES = "h100-sxm,h200,b200,a100-80gb"
# The longest run that is proposed if no option limits devices, time or dollars.
_DAYS = 90
_DAYS_SOURCE = (
    "published runs took two months, DeepSeek-V3, arXiv 2412.19437, to four, BLOOM, arXiv "
    "2211.05100"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """A request, its assumptions, and the devices that were left out.

    usual_deadline  the deadline is the default: it is dropped if nothing meets it
    """

    question: SizeQuestion
    assumed: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    usual_deadline: bool = False


def size_request(
    flags: SizeFlags, *, today: str, dataset_tokens: float | None = None
) -> SizeRequest:
    """The search problem of the flags.

    today           ISO day, for the age of prices
    dataset_tokens  stored, if they differ from the trained tokens (phases)

    Raises InputError, UnknownNameError, DocumentError.
    """
    options = flags.options
    described = described_of(options.model, options.seq)
    figures, sample = described.figures, described.sample
    if sample.counted_in != "tokens":
        raise InputError(
            f"{options.model} is trained on {sample.counted_in}, not tokens: `size` counts tokens"
        )
    assumed = list(sample.assumptions)
    usual_devices = not flags.on
    if usual_devices:
        flags = replace(flags, on=devices_of(_USUAL_DEVICES))
    stacks = _stacks(flags, figures)
    precision = _precision(flags, stacks, assumed)
    stacks = tuple(each for each in stacks if _trains_in(each, precision)) or stacks
    batches = flags.batches
    if not batches:
        usual = usual_batch(
            options.model,
            figures.parameters,
            sample.sequence_length,
            adapters=bool(options.lora),
        )
        batches = (usual.sequences,)
        assumed.append(usual.words)
    assumed += notes_on_batch(max(batches), sample.sequence_length)
    reliability = _reliability(options, assumed)
    pue, region = _site(options, today, assumed)
    tokens = flags.tokens
    if flags.optimal_tokens:
        tokens = scaling_law.optimal_tokens(figures.parameters)
        assumed.append(
            f"tokens {format_count(tokens)}: least loss for this model's compute "
            f"({scaling_law.SOURCE}; {scaling_law.RANGE_WORDS})"
        )
    minimise = TOKENS if tokens is None else flags.minimise or _usual_goal(flags)
    unlimited = not any((flags.deadline_s, flags.budget_usd, flags.nodes, flags.devices))
    usual_deadline = unlimited and tokens is not None and minimise != "time"
    if usual_deadline:
        assumed.insert(0, f"at most {_DAYS} days ({_DAYS_SOURCE}; --deadline)")
    if usual_devices:
        assumed.insert(0, f"devices {_USUAL_DEVICES}, which most providers rent (--on)")
    question = SizeQuestion(
        name=options.model,
        model=figures,
        choices=(_unpriced(flags.on[0], flags),),
        stacks=stacks,
        tokens=tokens,
        deadline_s=_DAYS * 86400.0 if usual_deadline else flags.deadline_s,
        budget_usd=flags.budget_usd,
        confidence=flags.confidence,
        minimise=minimise,
        batches=batches,
        seq_len=sample.sequence_length,
        precision=precision,
        lora_rank=options.lora,
        options=RequestedOptions(
            frozen_type=options.base_precision,
            optimizer=options.optimizer,
            expert_imbalance=options.expert_imbalance,
            documents=options.lengths,
        ),
        pue=pue,
        region=region,
        reliability=reliability,
    )
    if tokens is None:
        assumed.append("storage and egress are not counted, since the tokens are unknown")
    else:
        storage = run_storage(
            figures, dataset_tokens or tokens, options.lora, reliability, options.prices, assumed
        )
        question = replace(question, storage=storage)
    choices, left_out = _choices(flags, question, precision, today, assumed)
    able = {each.name for each in stacks}
    choices = tuple(
        replace(
            each,
            preferred=tuple(
                kept for group in each.preferred if (kept := tuple(n for n in group if n in able))
            ),
        )
        for each in choices
    )
    return SizeRequest(
        question=replace(question, choices=choices),
        assumed=tuple(assumed),
        left_out=tuple(left_out),
        usual_deadline=usual_deadline,
    )


def _usual_goal(flags: SizeFlags) -> str:
    """The fastest run for a budget alone, otherwise the cheapest."""
    return "time" if flags.budget_usd is not None and flags.deadline_s is None else "cost"


def _choices(
    flags: SizeFlags,
    question: SizeQuestion,
    precision: str,
    today: str,
    assumed: list[str],
) -> tuple[tuple[DeviceChoice, ...], list[tuple[str, str]]]:
    options = flags.options
    offers = shipped_offers() if options.prices is None else offers_with(options.prices)
    found, left_out = [], []
    old: list[str] = []
    for named in flags.on:
        choice = _priced(_unpriced(named, flags), options, offers, today, old)
        if choice.usd_per_hour is None and question.needs_price:
            left_out.append(
                (
                    named.name,
                    f"no {options.price} price is known of it; give one with --prices FILE, or a "
                    "--price-kind that it has",
                )
            )
            continue
        get_device(choice.device).peak(precision)
        found.append(choice)
    if old:
        assumed.append(f"prices older than {STALE_DAYS} days: {', '.join(old)} (--prices)")
    if not found:
        raise InputError("; ".join(f"{name}: {why}" for name, why in left_out))
    return tuple(found), left_out


def _of_file(named: NamedDevice, flags: SizeFlags) -> DeviceChoice:
    """The devices of a cluster file: all nodes, or as many as --nodes or --devices give."""
    options = flags.options
    cluster = get_cluster(named.name)
    if len(cluster.groups) > 1:
        raise InputError(f"--on {named.name}: `size` takes clusters of one type of node")
    (group,) = cluster.groups
    device = get_device(group.device.name).name
    every = (cluster.num_nodes, cluster.num_nodes)
    fewest, most = _nodes(flags, group.devices_per_node, named.name, every)
    if most > cluster.num_nodes:
        raise InputError(
            f"--on {named.name} has {cluster.num_nodes:,} nodes, fewer than {most:,} (--nodes, "
            "--devices)"
        )
    if options.network:
        raise InputError(
            f"--network {options.network}: the file {named.name} describes the network already"
        )
    return DeviceChoice(
        asked=f"{device} of {Path(named.name).name}",
        device=device,
        node_devices=group.devices_per_node,
        widths=(group.devices_per_node,),
        fewest=fewest,
        most=most,
        cluster=cluster,
        preferred=() if options.stack else preference(_compared(device, options), device),
    )


def _device_of(named: NamedDevice) -> str:
    """The catalog's name of the device of an entry of --on."""
    name = get_cluster(named.name).groups[0].device.name if named.is_file else named.name
    return get_device(name).name


def _unpriced(named: NamedDevice, flags: SizeFlags) -> DeviceChoice:
    options = flags.options
    if named.is_file:
        return _of_file(named, flags)
    design = node_design(named.name)
    device = get_device(named.name).name
    per_node = named.node_devices or design.devices
    if per_node > design.devices:
        raise InputError(
            f"--on {named.node_devices}x{named.name}: its nodes have {design.devices} devices; "
            f"use {design.devices} or fewer"
        )
    fewest, most = _nodes(flags, per_node, named.name, (1, max(1, MOST_DEVICES // per_node)))
    whole_trays = design.host_devices and per_node == design.devices
    narrower = 1 << (per_node.bit_length() - 1)
    widths = (per_node, narrower) if whole_trays and narrower < per_node else (per_node,)
    return DeviceChoice(
        asked=str(named),
        device=device,
        node_devices=per_node,
        widths=widths,
        fewest=fewest,
        most=most,
        network=get_link(options.network).name if options.network else "",
        preferred=() if options.stack else preference(_compared(device, options), device),
    )


def _nodes(flags: SizeFlags, per_node: int, name: str, usual: tuple[int, int]) -> tuple[int, int]:
    """The fewest and most nodes, by --nodes or --devices, otherwise the usual."""
    if flags.nodes is not None:
        return flags.nodes.first, flags.nodes.last
    return usual if flags.devices is None else _whole_nodes(flags.devices, per_node, name)


def _whole_nodes(devices: Range, per_node: int, name: str) -> tuple[int, int]:
    """The fewest and most whole nodes in a range of devices; raises InputError if there are none.

    >>> _whole_nodes(Range(first=10, last=100), 8, "h100-sxm")
    (2, 12)
    """
    fewest, most = -(-devices.first // per_node), devices.last // per_node
    if fewest <= most:
        return fewest, most
    counts = [count * per_node for count in (most, fewest) if count]
    asked = f"{devices.first}" + (f"..{devices.last}" if devices.last > devices.first else "")
    raise InputError(
        f"--devices {asked}: {name} is rented in nodes of {per_node}; use "
        f"{' or '.join(f'{count:,}' for count in counts)}, or parts of nodes: --on "
        f"{math.gcd(devices.last, per_node)}x{name}"
    )


def _priced(
    choice: DeviceChoice,
    options: SizeOptions,
    offers: tuple[Offer, ...],
    today: str,
    old: list[str],
) -> DeviceChoice:
    usd = _number(options.price)
    if usd is not None:
        return replace(
            choice,
            usd_per_hour=Interval(value=usd, low=usd, high=usd),
            price_words=f"${usd:g} per device-hour, given (--price-kind), {today}",
        )
    if options.price not in KINDS:
        raise InputError(
            f"--price-kind {options.price!r} is neither a kind of price ({', '.join(KINDS)}) nor "
            "US dollars per device-hour"
        )
    found = price_or_relatives(choice.device, options.price, offers)
    if found is None:
        return choice
    if stale := found.stale_offers(today):
        old.append(f"{len(stale)} of {len(found.offers)} ({choice.asked})")
    return replace(choice, usd_per_hour=_nine_tenths(found), price_words=found.words)


def _nine_tenths(price: DevicePrice) -> Interval:
    """The median over providers, and the 5 % and 95 % quantiles of their prices."""
    asked = [offer.usd_per_device_hour for offer in price.offers]
    low, high = (float(end) for end in np.quantile(asked, (0.05, 0.95)))
    return Interval(value=price.usd_per_hour, low=low, high=high)


def _number(text: str) -> float | None:
    try:
        found = float(text.removeprefix("$"))
    except ValueError:
        return None
    if not 0 < found < 1e9:
        raise InputError(
            f"--price-kind {text}: a device-hour costs more than 0 US dollars; write 2.50, or a "
            f"kind of price ({', '.join(KINDS)})"
        )
    return found


def _trains_in(choice: StackChoice, precision: str) -> bool:
    """Whether a framework has the precision, unless all frameworks have it."""
    rules = load_framework(choice.name).rules
    return precision not in LOW_PRECISIONS or precision in rules.precisions


def _precision(flags: SizeFlags, stacks: Sequence[StackChoice], assumed: list[str]) -> str:
    """The typed precision; otherwise that of the model's training, if a framework and all devices
    have it, or that of the devices."""
    options = flags.options
    if options.precision:
        if "," in options.precision:
            raise InputError(f"--precision {options.precision}: name one; --versus compares others")
        return first_precision(options.precision)
    offered = {name for each in stacks for name in load_framework(each.name).rules.precisions}
    usual = [
        default_precision(get_cluster(each.name), options.model, tuple(offered))
        for each in flags.on
    ]
    alike = len({precision for precision, _ in usual}) == 1
    precision, told = usual[0] if alike else default_precision(get_cluster(flags.on[0].name))
    assumed += told or (f"precision {precision} (--precision)",)
    return precision


def _reliability(options: SizeOptions, assumed: list[str]) -> ReliabilityInputs:
    if options.reliability is not None:
        return read_reliability(options.reliability)
    if options.price == "spot":
        assumed.append("interruptions of spot capacity as published (--reliability FILE)")
        return SPOT
    assumed.append("failures and storage as published clusters' (--reliability FILE)")
    return DEFAULT


def _site(options: SizeOptions, today: str, assumed: list[str]) -> tuple[SourcedRange, str]:
    """The site's PUE and the region of its grid."""
    usual = power_draw().pue
    if options.pue is None:
        assumed.append(f"PUE {usual.value:.2f} [{usual.low:.2f} - {usual.high:.2f}] (--pue)")
    else:
        source = f"--pue {options.pue:g}"
        usual = SourcedRange(
            value=options.pue, low=options.pue, high=options.pue, source=source, date=today
        )
    if not options.region:
        assumed.append("the world's average grid (--region)")
    region = options.region or WORLD
    grid_of(region)
    return usual, region


def _stacks(flags: SizeFlags, figures: Transformer) -> tuple[StackChoice, ...]:
    options = flags.options
    names = named_stacks(options.stack)
    for name in names:
        if name != ANY_STACK:
            load_framework(name)  # raises UnknownNameError with the nearest names
    if not names:
        devices = [_device_of(named) for named in flags.on]
        compared = dict.fromkeys(name for each in devices for name in _compared(each, options))
        names = tuple(name for name in compared if name != EXECUTOR or not figures.uncounted)
    elif ANY_STACK in names:
        only = {framework_of_device(_device_of(named)) for named in flags.on} - {""}
        unable = set() if _ours(options) and not figures.uncounted else {EXECUTOR}
        names = tuple(sorted({*offered_frameworks(), *only} - unable, key=_most_axes))
    return tuple(
        StackChoice(
            name=name,
            space=executor_space(Axes(), figures, options.model) if name == EXECUTOR else Axes(),
        )
        for name in names
    )


def _compared(device: str, options: SizeOptions) -> list[str]:
    """The frameworks to compare on a device if the request names none."""
    return list(compared_frameworks(device, ours=_ours(options)))


def _ours(options: SizeOptions) -> bool:
    """Whether our own executor has the options: it trains all weights, with states in fp32."""
    return not options.lora and options.optimizer == USUAL_OPTIMIZER


def _most_axes(name: str) -> tuple[int, str]:
    """Sort key: frameworks with the most choices first, because their results prune the others."""
    rules = load_framework(name).rules
    return (-len(rules.axes), name)
