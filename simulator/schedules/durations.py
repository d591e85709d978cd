"""Durations: seconds of every kind of action, per virtual stage."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds per virtual stage: forward, backward (whole or as I and W), and sends.

    send_forward_s[s], send_backward_s[s]   send of activations and of gradients across the cut
                       before stage s; entry 0 is unused
    backward_s         full backward `B`
    backward_input_s, backward_weight_s   its halves `I` and `W`, for schedules that split it; their
                       sum may exceed `B`. Give both or neither.
    ramp_send_s        extra time of sends through the first stage of every rank, for the first
                       micro-batch's forward and the last one's backward
    weight_share       share of `W` in `backward_s`, used without the halves
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    send_forward_s: tuple[float, ...]
    send_backward_s: tuple[float, ...]
    ramp_send_s: float = 0.0
    weight_share: float = 0.5
    backward_input_s: tuple[float, ...] | None = None
    backward_weight_s: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.backward_input_s is None) != (self.backward_weight_s is None):
            given = "weight" if self.backward_input_s is None else "input"
            raise InputError(
                f"only backward_{given}_s of the two halves of a backward is given; give both, or "
                "neither and weight_share"
            )
        rows = (
            self.forward_s,
            self.backward_s,
            self.send_forward_s,
            self.send_backward_s,
            self.backward_input_s,
            self.backward_weight_s,
        )
        counts = {len(row) for row in rows if row is not None}
        if len(counts) != 1:
            raise InputError(f"durations have different numbers of stages: {sorted(counts)}")

    @classmethod
    def even(
        cls,
        num_stages: int,
        *,
        forward_s: float = 1.0,
        backward_input_s: float = 1.0,
        backward_weight_s: float = 1.0,
        send_s: float = 0.0,
    ) -> Durations:
        """Equal durations for every stage; a full backward takes as long as its halves.

        >>> Durations.even(2, backward_weight_s=0.5).backward_s
        (1.5, 1.5)
        """
        return cls(
            forward_s=(forward_s,) * num_stages,
            backward_s=(backward_input_s + backward_weight_s,) * num_stages,
            send_forward_s=(send_s,) * num_stages,
            send_backward_s=(send_s,) * num_stages,
            backward_input_s=(backward_input_s,) * num_stages,
            backward_weight_s=(backward_weight_s,) * num_stages,
        )

    @property
    def num_stages(self) -> int:
        return len(self.forward_s)

    def input_s(self) -> tuple[float, ...]:
        """Seconds of `I` per stage."""
        if self.backward_input_s is not None:
            return self.backward_input_s
        return tuple(b * (1 - self.weight_share) for b in self.backward_s)

    def weight_s(self) -> tuple[float, ...]:
        """Seconds of `W` per stage."""
        if self.backward_weight_s is not None:
            return self.backward_weight_s
        return tuple(b * self.weight_share for b in self.backward_s)

    def lengths(self) -> list[float]:
        """[4 x stages]: forwards, backwards, their I parts, their W parts."""
        return [*self.forward_s, *self.backward_s, *self.input_s(), *self.weight_s()]
