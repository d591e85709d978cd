"""Durations: seconds of every kind of action, per virtual stage."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds per virtual stage: forward, backward (I and W split it), and sends.

    send_forward_s[s], send_backward_s[s]   for the tensors that cross the cut before stage s, down
    and up; entry 0 is not used
    backward_s         of a full backward `B`
    backward_input_s, backward_weight_s   of its halves `I` and `W` where a schedule splits it;
                       together they may take longer than `B` does. Both or neither.
    ramp_send_s        what the sends of the first micro-batch's forward and of the last one's
                       backward take beyond the others, through the first stage of every rank
    weight_share       part of `backward_s` that `W` is, where the halves are not given
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
                f"of the two halves of a backward only backward_{given}_s is given; give both, or "
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
            raise InputError(f"durations are needed for the same stages, got {sorted(counts)}")

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
        """Every stage alike; a full backward takes as long as its halves.

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
