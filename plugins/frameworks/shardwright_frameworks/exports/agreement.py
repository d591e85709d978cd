"""`disagreements`: keys in which a configuration differs from its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright_frameworks.exports.values.exported import Unexpressed
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.imported_run import ImportedRun, Value
from simulator.training_run.run.training_run import with_settings

# Values that a framework's file does not distinguish, by an import's key.
_ALIKE: Mapping[tuple[str, str], frozenset[Value]] = {
    ("torchtitan", "recompute"): frozenset({"alternate", "selective"}),
    ("torchtitan", "zero_stage"): frozenset({1, 2}),  # fsdp_reshard_after_forward = "never"
    ("maxtext", "recompute"): frozenset({"minimal", "minimal_with_context"}),
}
AXES = ("tp", "pp", "vpp", "cp", "ep", "dp")
_SETTINGS = (
    "zero_stage", "micro_batch", "global_batch", "seq_len", "precision", "recompute",
    "optimizer_offload",
)  # fmt: skip
_MODEL = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "num_experts", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One key: the planned value, the configuration's, and its place."""

    key: str
    planned: Value
    found: Value
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Comparison of a plan with a configuration.

    silent   keys missing in the configuration, which is no disagreement
    """

    same: tuple[str, ...]
    different: tuple[Disagreement, ...]
    silent: tuple[str, ...]


def agreement(
    planned: PlannedRun, found: ImportedRun, gaps: tuple[Unexpressed, ...] = ()
) -> Agreement:
    """Compares the plan with a configuration, key by key.

    gaps   parts that the target does not express: the written replacement is expected there
    """
    wanted = planned_values(planned, gaps)
    same, different, silent = [], [], []
    for key, value in wanted.items():
        placed = _count_given(found, key)
        if placed is None:
            silent.append(key)
        elif _equal(found.framework or "", key, value, placed):
            same.append(key)
        else:
            where = found.options.get(key) or found.derived.get(key, "")
            different.append(Disagreement(key=key, planned=value, found=placed, where=where))
    return Agreement(same=tuple(same), different=tuple(different), silent=tuple(silent))


def planned_values(planned: PlannedRun, gaps: tuple[Unexpressed, ...] = ()) -> Mapping[str, Value]:
    """A plan's values by the keys that an imported run has."""
    run = planned.run
    for gap in gaps:
        run = with_settings(run, gap.change or {})
    model = run.model
    return {
        "devices": planned.run.degrees.num_devices,
        **{axis: getattr(run.degrees, axis) for axis in AXES},
        **{name: getattr(run, name) for name in _SETTINGS},
        **{f"model.{name}": getattr(model, name) for name in _MODEL},
    }


def _count_given(found: ImportedRun, key: str) -> Value:
    """The value in the files, otherwise the framework's default."""
    if key.startswith("model."):
        name = key.removeprefix("model.")
        value: Value = getattr(found.model, name)
        return value
    return found.answer(key)


def _equal(framework: str, key: str, planned: Value, placed: Value) -> bool:
    if key == "recompute":
        # A kind's first word: `full, 4 layers` is `full`.
        planned, placed = (str(kind or "none").split()[0].strip(",") for kind in (planned, placed))
    return planned == placed or {planned, placed} <= _ALIKE.get((framework, key), frozenset())


def agreement_of_plans(planned: PlannedRun, found: PlannedRun) -> Agreement:
    """Compares two plans."""
    wanted, placed = planned_values(planned), planned_values(found)
    different = [
        Disagreement(key=key, planned=value, found=placed[key])
        for key, value in wanted.items()
        if placed[key] != value
    ]
    if planned.stages != found.stages:
        layers = [", ".join(str(s.num_layers) for s in run.stages) for run in (planned, found)]
        different.append(Disagreement(key="layers per stage", planned=layers[0], found=layers[1]))
    names = {each.key for each in different}
    return Agreement(
        same=tuple(key for key in wanted if key not in names),
        different=tuple(different),
        silent=(),
    )
