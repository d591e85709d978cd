"""One class holds the axes that a user fixes, and one file enumerates meshes and pipelines."""

from __future__ import annotations

import re
from dataclasses import fields

from planner.axes import Axes
from shardwright.options.option import SweepKey, options_of
from shardwright.options.plan_options import PlanOptions
from tests.architecture.sources import Source, shipped, source_names

_OPTIONAL_TUPLE = re.compile(r"tuple\[.*\| None", re.DOTALL)
AXES = {"tp", "pp", "dp", "vpp", "zero", "micro_batch", "schedule", "recompute"}
HOLDERS = ["planner/axes.py: Axes", "shardwright/options/plan_options.py: PlanOptions"]
"""The value of both searches, and the declaration of its flags (one per axis, see below)."""
ENUMERATOR = "planner/space.py"
# Whatever enumerates draws degrees from divisors, schedules from the executor's or a framework's
# list, and ZeRO stages from a framework's; these draw one of them for another reason.
DRAWN = ("divisors", "free_schedules", "zero_stages_at")
ALSO_DRAWN = {
    "planner/blocks/block_search.py: divisors": "micro-batches that a model runs on",
    "planner/blocks/answer.py: free_schedules": "the rules of the executor",
    "planner/heterogeneous/unequal_search.py: divisors": "replicas that differ have no mesh",
    "planner/heterogeneous/plan_mixed.py: divisors": "replicas that differ have no mesh",
    "planner/broken_pins.py: zero_stages_at": "a message's stages",
    "planner/layout/layout_question.py: divisors": "degrees that suit a model",
    "planner/sizing/sizing_search.py: zero_stages_at": "the most sharded run, for a bound",
    "profiles/model/loaders.py: divisors": "a message's heads",
    "shardwright/requests/plan_route.py: divisors": "tp degrees that the executor can split",
    "simulator/training_run/framework/framework.py: zero_stages_at": "the rule",
    "simulator/values/runnable.py: free_schedules": "the rule",
}


def holders(path: str, source: Source) -> list[str]:
    """Classes with every axis as a field of an optional tuple."""
    return [
        f"{path}: {each.name}"
        for each in source.classes
        if {name for name, text in each.fields.items() if _OPTIONAL_TUPLE.fullmatch(text)} >= AXES
    ]


def drawn(path: str, source: Source) -> set[str]:
    """Names of DRAWN that a file mentions."""
    return {f"{path}: {name}" for name in source.mentioned & set(DRAWN)}


def test_one_class_holds_the_axes() -> None:
    assert [each for path, source in shipped() for each in holders(path, source)] == HOLDERS


def test_each_axis_is_declared_as_an_option_of_the_same_type() -> None:
    declared = {each.name: each for each in options_of(PlanOptions) if each.sweep is SweepKey.PIN}
    assert {name: each.type for name, each in declared.items()} == {
        each.name: each.type for each in fields(Axes)
    }


def test_one_file_enumerates() -> None:
    found = {each for path, source in shipped() for each in drawn(path, source)}
    expected = {f"{ENUMERATOR}: {name}" for name in ("divisors", "zero_stages_at")}
    assert found == expected | set(ALSO_DRAWN)


def test_the_checks_see_a_second_class_and_a_second_enumeration() -> None:
    body = "\n".join(f"    {axis}: tuple[int, ...] | None = None" for axis in sorted(AXES))
    assert holders("a.py", source_names(f"class Space:\n{body}")) == ["a.py: Space"]
    found = drawn("a.py", source_names("for tp in divisors(8): rules.zero_stages_at(1)"))
    assert found == {"a.py: divisors", "a.py: zero_stages_at"}
