"""Which units' outputs the code between units changes in place."""

from __future__ import annotations

from executor.replay.data_flow import DataFlow


def written_units(flow: DataFlow) -> frozenset[str]:
    """Paths of the units, and of others whose outputs go into such a function beside one."""
    makers = {leaf.value: call.function for call in flow.calls for leaf in call.leaves}
    between = [call for call in flow.calls if not isinstance(call.function, str)]
    writing = [call for call in between if any(leaf.source >= 0 for leaf in call.leaves)]
    found = {makers[number] for call in writing for number in call.takes}
    return frozenset(path for path in found if isinstance(path, str))
