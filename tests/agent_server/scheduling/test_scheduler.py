"""Admissions are in order of arrival and never over the limit."""

from hypothesis import given
from hypothesis import strategies as st

from agent_server.scheduling.scheduler import free_slots, select_admissions

modes = st.sampled_from(["train", "eval"])
counts = st.dictionaries(modes, st.integers(0, 12))


@given(
    queued=st.dictionaries(modes, st.lists(st.uuids().map(str), unique=True, max_size=20)),
    running=counts,
    limits=counts,
)
def test_admissions_are_fifo_and_never_over_the_limit(queued, running, limits):
    admitted = select_admissions(queued, free_slots(running, limits))
    for mode, waiting in queued.items():
        mine = [session for session in admitted if session in waiting]
        assert mine == waiting[: len(mine)], "out of order"
        free = max(0, limits.get(mode, 0) - running.get(mode, 0))
        assert len(mine) == min(free, len(waiting)), "over the limit, or an idle slot while a session is queued"
