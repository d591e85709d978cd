"""`SizeQuestion`: a training run with some of tokens, time, dollars and devices unknown."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.axes import Axes
from planner.run_option import RequestedOptions
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import SourcedRange
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.mfu import model_flop_per_token
from simulator.money import RunStorage
from simulator.training_run.run.training_run import attended_length, mean_document_length
from simulator.values.prediction import Interval

MINIMISED = ("cost", "time", "devices", "energy")
TOKENS = "tokens"
"""The goal of a question whose tokens are unknown: as many as the limits allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Devices of one type that may be rented.

    asked, device  name in the request, and in the catalog
    node_devices   devices rented together: a node, a rack
    widths         numbers of devices per node that a layout may use: all of them, or a rack without
                   its last trays
    fewest, most   nodes
    usd_per_hour   of one device, None without a price
    price_words    provider, kind and age of the price
    network        a link of the catalog between nodes, one card per device; "" for the usual one
    cluster        from a cluster file, whose levels also apply to fewer nodes; None for the usual
                   one
    preferred      frameworks in groups: a group is searched only if no earlier one has an answer;
                   () searches all frameworks at once
    """

    asked: str
    device: str
    node_devices: int
    widths: tuple[int, ...]
    fewest: int
    most: int
    usd_per_hour: Interval | None = None
    price_words: str = ""
    network: str = ""
    preferred: tuple[tuple[str, ...], ...] = ()
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise InputError(
                f"{self.asked}: {self.fewest} to {self.most} nodes of {self.node_devices} devices "
                "is an empty range (--nodes, --devices)"
            )

    @property
    def each(self) -> str:
        """The name of one device: `h100-sxm` for `4xh100-sxm`."""
        return self.asked.removeprefix(f"{self.node_devices}x")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChoice:
    """A framework for the training, and its allowed layouts."""

    name: str
    space: Axes = field(default_factory=Axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """The search problem of `size`.

    tokens       of the whole run; None: as many as deadline and budget allow
    deadline_s   seconds from start to end, including failures; None for no limit
    budget_usd   dollars; None for no limit
    confidence   probability (0 to 1) with which each limit must be kept
    minimise     one of MINIMISED; TOKENS if tokens are unknown
    batches      sequences per step to choose from
    pue          power usage effectiveness: energy of the site over energy of its nodes
    region       of its power grid
    reliability  failure rates and restart times
    stretch      steady time of all phases (`--phases`) over that of the longest; 1 for one phase
    options      choices of layouts in addition to their axes
    storage      stored and sent data; None: not counted
    """

    name: str
    model: Transformer
    choices: tuple[DeviceChoice, ...]
    stacks: tuple[StackChoice, ...]
    tokens: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    confidence: float = 0.5
    minimise: str = "cost"
    batches: tuple[int, ...]
    seq_len: int
    precision: str = "bf16"
    lora_rank: int = 0
    options: RequestedOptions = field(default_factory=RequestedOptions)
    storage: RunStorage | None = None
    fit_risk: float = DEFAULT_FIT_RISK
    pue: SourcedRange
    region: str
    reliability: ReliabilityInputs
    stretch: float = 1.0

    def __post_init__(self) -> None:
        known = MINIMISED if self.tokens is not None else (TOKENS,)
        if self.minimise not in known:
            raise UnknownNameError("goal", self.minimise, known, where="--minimise")
        if self.tokens is None and self.deadline_s is None and self.budget_usd is None:
            raise InputError(
                "nothing limits the run: give --tokens, or a --deadline or --budget to solve "
                "for the tokens"
            )
        if not 0.0 < self.confidence < 1.0:
            raise InputError(
                f"--sure {self.confidence:g}: the probability of keeping a limit must be above "
                "0 and below 1; write 80%, or 0.8"
            )
        for flag, value in (
            ("--tokens", self.tokens),
            ("--deadline", self.deadline_s),
            ("--budget", self.budget_usd),
        ):
            if value is not None and not value > 0:
                raise InputError(f"{flag} must be above 0, got {value:g}")

    @property
    def flop_per_token(self) -> float:
        """Model FLOPs per token (simulator/mfu.py); if documents are packed, attention counts
        within them."""
        mean = mean_document_length(self.options.documents, self.seq_len)
        length = attended_length(self.seq_len, mean)
        return model_flop_per_token(self.model, length, adapters=bool(self.lora_rank))

    def stack_groups(self, choice: DeviceChoice) -> tuple[tuple[StackChoice, ...], ...]:
        """The frameworks to search for a device type, in order of preference."""
        if not choice.preferred:
            return (self.stacks,)
        named = {stack.name: stack for stack in self.stacks}
        return tuple(tuple(named[name] for name in group) for group in choice.preferred)

    @property
    def needs_price(self) -> bool:
        """Whether devices without a price are left out."""
        return self.budget_usd is not None or self.minimise == "cost"
