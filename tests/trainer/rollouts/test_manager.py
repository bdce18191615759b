"""Groups of real client processes: order, refill, bounded tries, timeouts, cancellation without leftovers."""

import os
import signal
import threading
import time

import pytest

from client.errors import ModelUnreachable
from trainer.engines.base import Sampling
from trainer.interrupts import Interrupted


def run(
    manager,
    groups=("a", "b"),
    size=2,
    mode="train",
    on_progress=lambda progress: None,
    on_result=lambda result: None,
):
    return manager.run(groups, size, mode, Sampling(), on_progress, on_result)


def test_every_group_is_complete_and_in_order(make_manager, gateway, rewarding):
    rollouts = run(make_manager(rewarding(0.5)), groups=("a", "b", "c"), size=3)
    assert [group.group_id for group in rollouts.groups] == ["a", "b", "c"]
    assert [len(group.samples) for group in rollouts.groups] == [3, 3, 3]
    assert {sample.reward for sample in rollouts.samples} == {0.5} and rollouts.samples[0].trace.n_calls == 1
    assert not gateway.open_now and not rollouts.failures and rollouts.refills == 0


def test_sessions_start_in_order_and_never_more_than_allowed(make_manager, gateway, rewarding):
    most = []
    rollouts = run(
        make_manager(rewarding(1), max_clients=2),
        groups=("a", "b", "c"),
        on_result=lambda result: most.append(len(gateway.open_now) + 1),
    )
    assert [session_id.split(".")[0] for session_id in gateway.opened] == ["a", "a", "b", "b", "c", "c"]
    assert len(rollouts.samples) == 6 and max(most) <= 2


def test_an_infrastructure_failure_is_refilled_in_its_group(make_manager, gateway, tmp_path, rewarding):
    command = f'if [ "$RELAX_GROUP_ID" = a ] && mkdir {tmp_path}/failed; then exit 1; fi; ' + rewarding(1)
    rollouts = run(make_manager(command))
    assert [len(group.samples) for group in rollouts.groups] == [2, 2]
    assert len(rollouts.results) == 5 and [failure.code for failure in rollouts.failures] == ["session_failed"]
    assert rollouts.refills == 1 and len(set(gateway.opened)) == 5


def test_tries_are_bounded_and_the_failure_is_no_reward(make_manager, rewarding):
    rollouts = run(make_manager('[ "$RELAX_GROUP_ID" = a ] && exit 75; ' + rewarding(0), max_tries=2))
    assert [len(group.samples) for group in rollouts.groups] == [0, 2]
    assert len(rollouts.failures) == 4 and len(rollouts.results) == 6


def test_an_overdue_client_is_ended_and_counts_as_a_failure(make_manager, gateway):
    rollouts = run(make_manager("sleep 600", timeout_s=0.1, max_tries=1), groups=("a",))
    assert [failure.code for failure in rollouts.failures] == ["client_timeout"] * 2
    assert not gateway.open_now


def test_an_overdue_client_that_ignores_sigterm_is_killed(make_manager):
    rollouts = run(
        make_manager("trap '' TERM; while :; do sleep 1; done", timeout_s=0.3, kill_after_s=0.2, max_tries=1),
        groups=("a",),
        size=1,
    )
    assert [result.exit.exit_code for result in rollouts.results] == [-signal.SIGKILL]


def test_progress_distinguishes_waiting_from_running(make_manager, gateway, rewarding):
    seen = []
    gateway.status = lambda: {
        gateway.opened[0]: {"n_calls": 0, "in_flight": 1},
        gateway.opened[1]: {"n_calls": 0, "in_flight": 0},
    }
    run(make_manager("sleep 0.3; " + rewarding(1), max_clients=2), on_progress=seen.append)
    assert (seen[0].waiting, seen[0].running, seen[0].done, seen[0].total) == (3, 1, 0, 4)
    assert (seen[-1].waiting, seen[-1].running, seen[-1].done) == (0, 0, 4) and seen[-1].rewards == (1.0,) * 4


def test_a_signal_cancels_every_session(make_manager, gateway, process_tag, tmp_path, leftover_processes, interrupts):
    """Clients receive SIGTERM and can cancel their sessions; a second Ctrl-C does not interrupt that."""
    discard = f"touch {tmp_path}/$RELAX_SESSION_ID; until [ -e {tmp_path}/second ]; do sleep 0.1; done; exit 143"
    command = f"trap '{discard}' TERM; touch {tmp_path}/ready-$RELAX_SESSION_ID; while :; do sleep 0.1; done"

    def on_progress(progress):
        if len(list(tmp_path.glob("ready-*"))) == 4:  # each has its trap set
            os.kill(os.getpid(), signal.SIGINT)

    def again():
        while not any(tmp_path.glob("?.*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        (tmp_path / "second").touch()

    second = threading.Thread(target=again)
    second.start()
    with pytest.raises(Interrupted):
        run(make_manager(command, env={"PROCESS_TAG": process_tag}, interrupts=interrupts), on_progress=on_progress)
    second.join()
    assert interrupts.exit_code == 130
    assert len(list(tmp_path.glob("?.*"))) == 4 and not gateway.open_now
    assert leftover_processes() == []


def test_a_dead_service_ends_the_rollouts(make_manager, gateway, process_tag, leftover_processes):
    def health_check():
        raise ModelUnreachable("the engine died")

    with pytest.raises(ModelUnreachable, match="the engine died"):
        run(make_manager("sleep 600", health_check=health_check, env={"PROCESS_TAG": process_tag}))
    assert not gateway.open_now and leftover_processes() == []


def test_a_gateway_that_dies_ends_the_rollouts(make_manager, gateway, process_tag, rewarding, leftover_processes):
    def close(session_id):
        raise ModelUnreachable("the gateway does not answer")

    gateway.close = close
    with pytest.raises(ModelUnreachable):
        run(make_manager("sleep 0.1; " + rewarding(1), env={"PROCESS_TAG": process_tag}))
    assert leftover_processes() == []


def test_a_client_that_cannot_be_started_leaves_no_session_at_the_gateway(
    make_manager, gateway, tmp_path, process_tag, leftover_processes
):
    """The second client fails while the first one runs: its folder cannot be made."""
    manager = make_manager("sleep 600", env={"PROCESS_TAG": process_tag})
    open_session = gateway.open

    def open_and_break(session_id, key, sampling):
        open_session(session_id, key, sampling)
        if len(gateway.opened) == 2:
            (tmp_path / "sessions").rename(tmp_path / "moved")

    gateway.open = open_and_break
    with pytest.raises(FileNotFoundError):
        run(manager)
    assert len(gateway.opened) == 2 and not gateway.open_now and leftover_processes() == []


def test_a_hundred_clients_at_once_all_return_samples(make_manager, gateway, rewarding):
    rollouts = run(make_manager("sleep 0.5; " + rewarding(1)), groups=[f"g{number}" for number in range(12)], size=8)
    assert len(rollouts.samples) == 96 and not gateway.open_now
