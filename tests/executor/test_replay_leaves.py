"""The leaves of a call, against torch's own pytree."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers.modeling_outputs import BaseModelOutput

from executor.replay.leaves import leaves_of, mapped

Pair = namedtuple("Pair", ("first", "second"))

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.builds(lambda n: torch.zeros(n), st.integers(0, 3)),
    st.builds(lambda n: nn.Parameter(torch.zeros(n)), st.integers(0, 3)),
    st.just(torch.float32),
    st.just(torch.Size((2, 3))),
    st.just(slice(1, 2)),
)


def _holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rows = st.lists(inner, max_size=3)
    named = st.dictionaries(st.text(max_size=2), inner, max_size=3)
    return st.one_of(
        rows,
        rows.map(tuple),
        named,
        named.map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(lambda n: BaseModelOutput(last_hidden_state=torch.zeros(n)), st.integers(0, 3)),
    )


@given(st.recursive(PLAIN, _holding, max_leaves=12))
def test_leaves_are_pytrees(value: Any) -> None:
    expected = tree_leaves(value)
    assert [id(x) for x in leaves_of(value)] == [id(x) for x in expected]

    def change(x: Any) -> Any:
        return ("changed", id(x))

    ours, theirs = mapped(change, value), tree_map(change, value)
    assert type(ours) is type(theirs)
    assert repr(ours) == repr(theirs)
