"""`FleetReader`: converts the entries of a file (entries.py) to a `FleetQuestion`."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.run_option import RequestedOptions
from planner.space import EXECUTOR
from profiles.errors import InputError, ShardwrightError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.prices.offer import Offer
from profiles.units import parse_probability, parse_quantity
from shardwright.requests.named_model import described_of
from shardwright.requests.plan_choices import first_precision
from shardwright.requests.plan_request import default_precision
from shardwright.requests.price_request import given_price, price_for
from shardwright.requests.sizing.size_flags import Faults, range_of
from shardwright_fleet.entries import ClusterEntry, FleetFile, JobEntry
from shardwright_fleet.question import (
    AVOID,
    FINE,
    NEVER,
    FleetCluster,
    FleetPhase,
    FleetQuestion,
    FleetRun,
    node_counts,
)
from simulator.training_run.framework.framework import load_framework, offered_frameworks
from simulator.training_run.run.low_bits import FROZEN_TYPES, OPTIMIZERS

USUAL_STACK = "megatron-core"
_TERMS = ("owned", "rented")
_PREFER = ("cost", "time")


class FleetReader:
    """Reads entries one by one and collects their errors."""

    def __init__(self, file: FleetFile, offers: tuple[Offer, ...] | None) -> None:
        self.file, self.offers = file, offers
        self.faults = Faults()
        self.assumed: list[str] = []

    def question(self) -> tuple[FleetQuestion, tuple[str, ...]]:
        """The values; raises InputError with all errors."""
        file, read = self.file, self.faults.read
        if not file.cluster or not file.job:
            raise InputError("a fleet needs one [[cluster]] and one [[job]] at least")
        self._twice("cluster", [each.name for each in file.cluster])
        self._twice("job", [each.name for each in file.job])
        step_h = read(
            lambda: parse_quantity(file.grid, "time", where="grid", above_0=True) / 3600.0, 1.0
        )
        sure = read(lambda: parse_probability(file.sure, where="sure"), 0.5)
        if file.prefer not in _PREFER:
            self.faults.said.append(str(UnknownNameError("goal", file.prefer, _PREFER)))
        start = read(lambda: _moment(file.start, "start"), datetime.datetime(2000, 1, 1))
        self.start = start
        self.faults.end()
        clusters = [self._read_cluster(n, one) for n, one in enumerate(file.cluster)]
        self.faults.end()
        known = tuple(each for each in clusters if each is not None)
        runs = [self._read_run(n, one, known) for n, one in enumerate(file.job)]
        self.faults.end()
        found = tuple(run for run in runs if run is not None)
        _need_no_circle(found)
        question = FleetQuestion(
            start=start.isoformat(timespec="minutes"),
            clusters=tuple(_with_parts(each, n, found) for n, each in enumerate(known)),
            runs=found,
            step_h=step_h,
            sure=sure,
            prefer=file.prefer,
        )
        return question, tuple(dict.fromkeys(self.assumed))

    def _twice(self, table: str, names: list[str]) -> None:
        for number, name in enumerate(names):
            if name in names[:number]:
                self.faults.said.append(f"{table}[{number}].name: {name!r} is there already")

    def _read_cluster(self, number: int, entry: ClusterEntry) -> FleetCluster | None:
        return self.faults.read(lambda: self._cluster(number, entry), None)

    def _read_run(
        self, number: int, entry: JobEntry, known: tuple[FleetCluster, ...]
    ) -> FleetRun | None:
        return self.faults.read(lambda: self._run(number, entry, known), None)

    def _cluster(self, number: int, entry: ClusterEntry) -> FleetCluster:
        where = f"cluster[{number}]"
        if entry.terms not in _TERMS:
            raise UnknownNameError("terms", entry.terms, _TERMS, where=f"{where}.terms")
        whole = _at(f"{where}.on", lambda: get_cluster(entry.on))
        if not whole.homogeneous or len(whole.groups) != 1:
            raise InputError(
                f"{where}.on: {entry.on} has nodes of several kinds; write a [[cluster]] for each"
            )
        price = _at(f"{where}.price", lambda: self._price(whole, entry.price))
        if price is None and entry.terms == "rented":
            raise InputError(
                f"{where}.price: no {entry.price} offer of {whole.groups[0].device.name} is known; "
                'write dollars of a device-hour (price = "2.50$"), or terms = "owned"'
            )
        opens = self._hours(entry.available_from, f"{where}.available_from", end_of_day=False)
        closes = self._hours(entry.available_until, f"{where}.available_until", end_of_day=True)
        if closes is not None and closes <= (opens or 0.0):
            raise InputError(f"{where}.available_until: {entry.available_until} is before it opens")
        group = whole.groups[0]
        return FleetCluster(
            name=entry.name,
            on=entry.on,
            nodes=group.count,
            node_devices=group.devices_per_node,
            device=group.device.name,
            parts={group.count: whole},
            price=price,
            kind="" if "$" in entry.price else entry.price,
            owned=entry.terms == "owned",
            opens_h=opens or 0.0,
            closes_h=closes,
        )

    def _price(self, whole: Cluster, text: str) -> Any:
        if "$" not in text:
            if is_bare_number(text):
                raise InputError(f"{text!r} has no unit; write {text}$ for dollars per device-hour")
            return price_for(whole, text, self.offers)
        usd = parse_quantity(text, "money")
        found = given_price(repr(usd))
        assert found is not None
        return replace(found, source="given in the file")

    def _run(self, number: int, entry: JobEntry, clusters: tuple[FleetCluster, ...]) -> FleetRun:
        where = f"job[{number}]"
        names = [each.name for each in clusters]
        allowed = []
        for name in entry.clusters or names:
            if name not in names:
                raise UnknownNameError("cluster", name, names, where=f"{where}.clusters")
            allowed.append(names.index(name))
        described = _at(f"{where}.model", lambda: described_of(entry.model, entry.seq))
        phases = self._phases(where, entry, described.sample.sequence_length)
        not_before = self._hours(entry.not_before, f"{where}.not_before", end_of_day=False) or 0.0
        deadline = self._hours(entry.deadline, f"{where}.deadline", end_of_day=True)
        if deadline is not None and deadline <= not_before:
            begin = entry.not_before or f"the start, {self.file.start}"
            raise InputError(f"{where}.deadline: {entry.deadline} is not after {begin}")
        late, fine = _at(f"{where}.late", lambda: _lateness(entry.late))
        if late != AVOID and deadline is None:
            raise InputError(f"{where}.late: {entry.late!r} has no effect without a deadline")
        if not 1 <= entry.priority <= 1000:
            raise InputError(f"{where}.priority: {entry.priority} is not between 1 and 1000")
        nodes = _at(f"{where}.nodes", lambda: range_of(entry.nodes, "nodes"))
        jobs = [each.name for each in self.file.job]
        for name in entry.after:
            if name not in jobs or name == entry.name:
                raise UnknownNameError("job", name, jobs, where=f"{where}.after")
        if not entry.stack:
            self.assumed.append(f"runs without a stack use {USUAL_STACK} (stack)")
        precision = _at(f"{where}.precision", lambda: first_precision(entry.precision))
        if not entry.precision:
            first = clusters[allowed[0]]
            precision, told = default_precision(first.parts[first.nodes])
            self.assumed += told
        return FleetRun(
            name=entry.name,
            model_name=entry.model,
            model=described.figures,
            phases=phases,
            stacks=_at(f"{where}.stack", lambda: _stacks(entry.stack or USUAL_STACK)),
            precision=precision,
            lora_rank=entry.lora,
            options=_options(where, entry),
            deadline_h=deadline,
            late=late,
            usd_per_day=fine,
            priority=entry.priority,
            not_before_h=not_before,
            clusters=tuple(allowed),
            fewest=nodes.first if nodes else 1,
            most=nodes.last if nodes else 10**6,
            after=tuple(jobs.index(name) for name in entry.after),
            may_move=entry.may_move,
        )

    def _phases(self, where: str, entry: JobEntry, seq: int) -> tuple[FleetPhase, ...]:
        if entry.phases:
            if entry.tokens or entry.global_batch is not None:
                raise InputError(
                    f"{where}.phases: phases set tokens and global_batch; leave them out of the job"
                )
            return tuple(
                FleetPhase(
                    name=phase.name or f"phase {number}",
                    tokens=phase.tokens_count,
                    seq_len=phase.seq,
                    global_batch=phase.global_batch,
                )
                for number, phase in enumerate(entry.phases, start=1)
            )
        if not entry.tokens or entry.global_batch is None:
            missing = "tokens" if not entry.tokens else "global_batch"
            raise InputError(
                f'{where}: the key {missing!r} is missing (tokens = "1T", global_batch = 512)'
            )
        if entry.tokens.strip().isdigit() and int(entry.tokens) < 10**6:
            raise InputError(
                f"{where}.tokens: {entry.tokens!r} tokens are fewer than a million; is a unit "
                'missing ("300B", "1T")?'
            )
        if entry.global_batch < 1 or seq < 1:
            raise InputError(f"{where}.global_batch: a step must have 1 sequence or more")
        tokens = parse_quantity(entry.tokens, "count", where=f"{where}.tokens", above_0=True)
        return (FleetPhase(name="", tokens=tokens, seq_len=seq, global_batch=entry.global_batch),)

    def _hours(self, text: str, where: str, *, end_of_day: bool) -> float | None:
        """Hours after the start; a date without a time means its beginning or (`end_of_day`)
        end."""
        if not text:
            return None
        if re.match(r"^\d{4}-", text):
            moment = _moment(text, where)
            if end_of_day and len(text) == len("2026-12-01"):
                moment += datetime.timedelta(days=1)
            hours = (moment - self.start).total_seconds() / 3600.0
            if hours < 0 or (end_of_day and hours == 0):
                raise InputError(f"{where}: {text} is before the start, {self.file.start}")
            return hours
        return parse_quantity(text, "time", where=where, above_0=True) / 3600.0


def is_bare_number(text: str) -> bool:
    """Whether a price is a bare number."""
    return bool(re.match(r"^\d+(\.\d+)?$", text.strip()))


def _at(where: str, read: Any) -> Any:
    """The result of `read`; adds the place in the file to errors."""
    try:
        return read()
    except ShardwrightError as error:
        raise InputError(f"{where}: {error}") from error


def _moment(text: str, where: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise InputError(
            f"{where}: {text!r} is not a date; write 2026-12-01, 2026-12-01T08:00, or days: 45d"
        ) from None


def _options(where: str, entry: JobEntry) -> RequestedOptions:
    """Types of frozen weights and optimizer states."""
    frozen, optimizer = entry.base_precision, entry.optimizer
    if entry.lora < 0:
        raise InputError(f"{where}.lora: {entry.lora}; the rank of adapters must be 1 or more")
    if frozen and not entry.lora:
        raise InputError(
            f"{where}.base_precision: {frozen!r}; only frozen weights are kept in few bits: give "
            "lora = RANK, or leave it out"
        )
    if frozen not in ("", *FROZEN_TYPES):
        key = f"{where}.base_precision"
        raise UnknownNameError("type of frozen weights", frozen, FROZEN_TYPES, where=key)
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS, where=f"{where}.optimizer")
    return RequestedOptions(frozen_type=frozen, optimizer=optimizer)


def _lateness(text: str) -> tuple[str, float]:
    if text in (NEVER, AVOID):
        return text, 0.0
    if "$" not in text:
        raise InputError(f'{text!r} is none of "avoid", "never", and dollars a day: "20k$"')
    usd = parse_quantity(text, "money")
    return (FINE, usd) if usd > 0 else (AVOID, 0.0)


def _stacks(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if "any" in names:
        return tuple(name for name in offered_frameworks() if name != EXECUTOR)
    for name in names:
        load_framework(name)
    return names


def _need_no_circle(runs: tuple[FleetRun, ...]) -> None:
    done: set[int] = set()
    while len(done) < len(runs):
        ready = {n for n, run in enumerate(runs) if n not in done and set(run.after) <= done}
        if not ready:
            left = next(n for n in range(len(runs)) if n not in done)
            raise InputError(f"job[{left}].after: {runs[left].name} depends on itself")
        done |= ready


def _with_parts(cluster: FleetCluster, number: int, runs: tuple[FleetRun, ...]) -> FleetCluster:
    """The cluster with a part for every number of nodes that some run may use."""
    whole = cluster.parts[cluster.nodes]
    counts = {n for run in runs if number in run.clusters for n in node_counts(cluster, run)}
    return replace(cluster, parts={n: part_of(whole, n) for n in sorted(counts | {cluster.nodes})})


def part_of(whole: Cluster, nodes: int) -> Cluster:
    """The cluster with `nodes` nodes of its only kind."""
    (group,) = whole.groups
    if nodes == group.count:
        return whole
    if not Path(whole.name).suffix and "+" not in whole.name:
        kind = re.sub(r"^(?:\d+x){0,2}", "", whole.name)
        return get_cluster(f"{nodes}x{group.devices_per_node}x{kind}")
    total = nodes * group.devices_per_node
    levels = []
    for level in whole.levels:
        if level.torus:
            raise InputError(f"{whole.name}: runs cannot use a part of a torus")
        levels.append(replace(level, domain_size=min(level.domain_size, total)))
        if level.domain_size >= total:
            break
    if levels and levels[-1].domain_size < total:
        levels[-1] = replace(levels[-1], domain_size=total)
    return replace(
        whole,
        name=f"{whole.name}, {nodes} nodes",
        groups=(replace(group, count=nodes),),
        levels=tuple(levels),
    )
