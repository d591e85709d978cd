"""What `plan --stack` may choose beside the axes, from flags as they are typed."""

from __future__ import annotations

from collections.abc import Mapping

from planner.axes import parse_axis
from planner.run_option import ANY, RequestedOptions
from profiles.errors import InputError
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER

# What --stack takes for every framework that we offer.
ANY_STACK = "any"
# Flags that need --stack, with what `plan` calls them.
OPTION_FLAGS = {
    "order": "--order",
    "reduce": "--reduce",
    "compress": "--compress",
    "local_steps": "--local-steps",
    "local_workers": "--local-workers",
    "wide_layers": "--wide-layers",
    "optimizer_offload": "--optimizer-offload",
    "activation_offload": "--activation-offload",
    "base_precision": "--base-precision",
    "optimizer": "--optimizer",
}
# Precisions of which a few layers may be left out.
NARROW = ("fp8", "mxfp8", "nvfp4")
# The shares that `--activation-offload any` tries.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def requested_options(given: Mapping[str, str | None], precision: str) -> RequestedOptions:
    """The options of flags; `given` by the names of OPTION_FLAGS, None where not typed.

    Raises InputError for what is no list of such values, UnknownNameError for unknown names.
    """
    precisions = _names(precision)
    if _counts(given, "local_workers") and max(_counts(given, "local_steps"), default=1) == 1:
        raise InputError(
            f"--local-workers {given['local_workers']}: nothing steps alone unless --local-steps "
            "is above 1; give for example --local-steps 1,50, or leave it out"
        )
    if _counts(given, "wide_layers") and not {*precisions} & {*NARROW, ANY}:
        raise InputError(
            f"--wide-layers {given['wide_layers']}: all layers are in {precision or 'bf16'} as it "
            f"is; give a --precision of {', '.join(NARROW)}, or leave it out"
        )
    return RequestedOptions(
        precisions=precisions if len(precisions) > 1 or precisions == (ANY,) else (),
        orders=_names(given.get("order")),
        reductions=_names(given.get("reduce")),
        compressions=_names(given.get("compress")),
        local_steps=_counts(given, "local_steps"),
        local_workers=max(_counts(given, "local_workers"), default=0),
        wide_layers=max(_counts(given, "wide_layers"), default=0),
        optimizer_offload=given.get("optimizer_offload") is not None,
        activation_offloads=_shares(given.get("activation_offload")),
        frozen_type=given.get("base_precision") or "",
        optimizer=given.get("optimizer") or USUAL_OPTIMIZER,
    )


def first_precision(precision: str) -> str:
    """The precision of a question: the one typed, or bf16 where there is a choice."""
    names = _names(precision)
    if precision and not names:
        raise InputError("--precision names none; write bf16, or bf16,fp8 to choose from")
    return names[0] if len(names) == 1 and names[0] != ANY else "bf16"


def need_stack(given: Mapping[str, str | None], precision: str) -> None:
    """Raises InputError where an option is typed that our own executor has not."""
    for name, flag in {**OPTION_FLAGS, "lora": "--lora"}.items():
        if given.get(name) is not None:
            raise InputError(
                f"{flag} needs --stack: it is a choice of layouts of described models, and our own "
                "executor has none of it"
            )
    if "," in precision or precision == ANY:
        raise InputError(
            f"--precision {precision}: several to choose from need --stack; without it name one"
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _counts(given: Mapping[str, str | None], name: str) -> tuple[int, ...]:
    text = given.get(name)
    return () if text is None else parse_axis(text, OPTION_FLAGS[name])


def _shares(text: str | None) -> tuple[float, ...]:
    if text == ANY:
        return _SHARES
    try:
        return tuple(float(part) for part in _names(text))
    except ValueError:
        raise InputError(
            f"--activation-offload {text!r} is no list of shares; write 0.5, 0,0.5,1 or any"
        ) from None
