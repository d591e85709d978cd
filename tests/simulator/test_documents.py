"""Documents packed into sequences, and experts loaded unevenly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.mfu import model_flop_per_token
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import attended_length, mean_document_length
from simulator.training_run.work.layer_work import layer_work
from tests.simulator.described_runs import LLAMA_RUN

CORE = load_framework("megatron-core")
RUN = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)


def test_the_mean_is_that_of_tokens() -> None:
    # 3 x 512 tokens and 1 x 4096: (3 x 512^2 + 4096^2) / (1536 + 4096)
    assert mean_document_length(((512, 3.0), (4096, 1.0)), 8192) == 17563648 / 5632
    with pytest.raises(InputError, match="10000 tokens is longer than a sequence of 4096"):
        mean_document_length(((512, 3.0), (10_000, 2.0)), 4096)
    assert mean_document_length((), 4096) == 0.0
    assert attended_length(4096, 0.0) == 4096


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.floats(0.01, 100.0)), min_size=1, max_size=5),
    st.integers(20_000, 100_000),
)
def test_it_lies_between_one_token_and_the_sequence(
    lengths: list[tuple[int, float]], seq_len: int
) -> None:
    mean = mean_document_length(tuple(lengths), seq_len)
    assert mean * (1 + 1e-12) >= 1.0
    assert mean <= seq_len * (1 + 1e-12)
    scaled = tuple((length, 2.0 * number) for length, number in lengths)
    assert mean_document_length(scaled, seq_len) == mean


def test_attention_alone_gets_cheaper() -> None:
    short = replace(RUN, document_length=RUN.seq_len / 4)
    whole, packed = (layer_work(run, CORE, experts=False) for run in (RUN, short))
    (before,), (after,) = whole.attention, packed.attention
    assert (after.batch, after.seq) == (4 * before.batch, before.seq / 4)
    assert after.batch * after.seq**2 == before.batch * before.seq**2 / 4
    assert replace(packed, attention=whole.attention) == whole
    # As many scores as whole sequences of that length, hence their model FLOPs.
    assert model_flop_per_token(RUN.model, short.attended_length) == model_flop_per_token(
        RUN.model, RUN.seq_len // 4
    )


def test_documents_of_whole_sequences_change_nothing() -> None:
    same = replace(RUN, document_length=float(RUN.seq_len))
    assert layer_work(same, CORE, experts=False) == layer_work(RUN, CORE, experts=False)
    with pytest.raises(InputError, match=r"document_length=0\.5 must be 1 token or more"):
        replace(RUN, document_length=0.5)


def test_a_rank_with_all_experts_has_the_mean_load() -> None:
    run = replace(RUN, expert_imbalance=1.5)
    assert run.fullest_expert_load == 1.0
    spread = replace(run, degrees=replace(run.degrees, ep=2, dp=2 * run.degrees.dp))
    assert spread.fullest_expert_load == 1.5
