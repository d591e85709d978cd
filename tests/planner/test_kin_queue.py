"""Jobs of one kin go to one process, and every job is given once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many.local_workers import KinQueue
from planner.many.sweep import Job


def jobs(kins):
    return [Job(key=str(number), text="", kin=kin) for number, kin in enumerate(kins)]


def test_a_process_stays_with_a_kin_until_none_is_left():
    queue = KinQueue(jobs("aabbab"))
    one, other = queue.take(), queue.take()
    assert (one.key, other.key) == ("0", "2")  # the first of each kin
    assert [queue.take("a").key, queue.take("a").key, queue.take("b").key] == ["1", "4", "3"]
    # No a is left: what is left of b.
    assert queue.take("a").key == "5"
    assert not queue
    with pytest.raises(IndexError):
        queue.take("a")


def test_a_job_whose_process_died_is_the_next_of_its_kin():
    queue = KinQueue(jobs("aab"))
    lost = queue.take()
    queue.put_back(lost)
    assert queue.take("a") == lost


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.randoms())
def test_every_job_is_given_once_and_a_kin_in_its_order(kins, random):
    queue, given_out = KinQueue(jobs(kins)), []
    while queue:
        given_out.append(queue.take(random.choice([None, "a", "b", "zz"])))
    assert sorted(int(job.key) for job in given_out) == list(range(len(kins)))
    for kin in "abcd":
        keys = [int(job.key) for job in given_out if job.kin == kin]
        assert keys == sorted(keys)
