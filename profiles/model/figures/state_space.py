"""`StateSpace`: layers that mix tokens by a recurrence over a state, not by attention.

Three kinds, told apart by `rule`:
    ssd      Mamba-2 (Dao and Gu, arXiv 2405.21060): a scalar decay per head, computed in chunks by
             matmuls (section 6); of H heads of size P, state N, G groups that share B and C
    delta    gated delta rule (Yang, Kautz and Hatamizadeh, arXiv 2412.06464; Qwen3-Next): the same
             shapes with keys and queries in the place of B and C, G their heads, and two gates
    scan     Mamba (Gu and Dao, arXiv 2312.00752; Jamba): a decay per channel and state, one fused
             scan without matmuls; H P channels, N states each
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError, UnknownNameError

RULES = ("ssd", "delta", "scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """The mixer of one layer.

    heads, head_size   their product is the inner width
    state_size         N; groups  heads that B and C (keys and queries) have of their own
    conv_width         taps of the causal convolution before the recurrence
    chunk              tokens that are computed together
    step_rank          of `scan`: rank of the projection to step sizes

    Raises InputError for counts below 1, UnknownNameError for another rule.
    """

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    rule: str = "ssd"
    conv_width: int = 4
    chunk: int = 128
    step_rank: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UnknownNameError("state rule", self.rule, RULES)
        for name in ("heads", "head_size", "state_size", "groups", "conv_width", "chunk"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.heads % self.groups:
            raise InputError(f"{self.groups} groups do not divide {self.heads} heads of a state")

    @property
    def inner_size(self) -> int:
        """Width of the values that the recurrence mixes."""
        return self.heads * self.head_size

    @property
    def shared_size(self) -> int:
        """Width of B and C together (keys and queries)."""
        return 2 * self.groups * self.state_size

    @property
    def gate_size(self) -> int:
        """Per-head scalars of the input projection: step sizes, of `delta` decay and strength."""
        return {"ssd": self.heads, "delta": 2 * self.heads, "scan": 0}[self.rule]

    @property
    def input_size(self) -> int:
        """Outputs of the input projection: values, their gate z, B and C, gates. A `scan` makes B,
        C and the step's factor from the values by a projection of its own."""
        if self.rule == "scan":
            return 2 * self.inner_size
        return 2 * self.inner_size + self.shared_size + self.gate_size

    @property
    def convolved_size(self) -> int:
        """Channels that the causal convolution runs over."""
        return self.inner_size if self.rule == "scan" else self.inner_size + self.shared_size

    def parameters(self, hidden_size: int) -> int:
        """Weights of one layer's mixer, with its convolution, decays and norm."""
        inner = self.inner_size
        matrices = hidden_size * (self.input_size + inner)
        small = self.convolved_size * self.conv_width
        if self.rule == "scan":
            step = self.step_rank
            matrices += inner * (step + 2 * self.state_size) + step * inner
            return matrices + small + inner * (self.state_size + 2)
        return matrices + small + 3 * self.heads + inner
