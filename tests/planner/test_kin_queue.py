"""Jobs of one kin go to one process, and every job is given once."""

from hypothesis import given
from hypothesis import strategies as st

from planner.batch.local_workers import take
from planner.batch.sweep import Job


def jobs(kins):
    return [Job(key=str(number), text="", kin=kin) for number, kin in enumerate(kins)]


def test_a_process_stays_with_a_kin_until_none_is_left():
    waiting, begun = jobs("aabbab"), set()
    one, other = take(waiting, begun), take(waiting, begun)
    assert (one.key, other.key) == ("0", "2")  # the first of each kin
    assert [take(waiting, begun, kin).key for kin in "aab"] == ["1", "4", "3"]
    # No a is left: what is left of b.
    assert take(waiting, begun, "a").key == "5"
    assert not waiting


def test_a_job_whose_process_died_is_the_next_of_its_kin():
    waiting, begun = jobs("aab"), set()
    lost = take(waiting, begun)
    waiting.insert(0, lost)
    assert take(waiting, begun, "a") == lost


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.randoms())
def test_every_job_is_given_once_and_a_kin_in_its_order(kins, random):
    waiting, begun, given_out = jobs(kins), set(), []
    while waiting:
        given_out.append(take(waiting, begun, random.choice([None, "a", "b", "zz"])))
    assert sorted(int(job.key) for job in given_out) == list(range(len(kins)))
    for kin in "abcd":
        keys = [int(job.key) for job in given_out if job.kin == kin]
        assert keys == sorted(keys)
