"""The drift alarm reports shares that grew, and neither chance nor improvement."""

import random

import pytest

from agent_server.observability.drift import BEFORE, LATEST, DriftAlarm, EndedSession, drifts


def event(name: str, session_id: str = "s", **fields):
    return {"name": name, "session_id": session_id, "mode": "train", **fields}


def ended(n: int, zero_share: float, chance: random.Random, alarm: DriftAlarm) -> None:
    for number in range(n):
        alarm.observe(event("admitted", f"s{number}"))
        alarm.observe(event("completed", f"s{number}", reward=1.0, resolved=chance.random() >= zero_share))


def test_a_share_of_zeros_that_grows_with_load_is_an_alarm_and_goes_again(caplog):
    alarm, chance = DriftAlarm(), random.Random(1)
    ended(BEFORE, 0.05, chance, alarm)
    assert not any(alarm.alarms.values())
    ended(LATEST, 0.38, chance, alarm)
    assert alarm.alarms == {"unresolved": True, "time_out": False} and 0.25 < alarm.shares["unresolved"] < 0.5
    assert sum("unresolved sessions went from" in record.getMessage() for record in caplog.records) == 1
    ended(LATEST, 0.05, chance, alarm)
    assert not any(alarm.alarms.values())


@pytest.mark.parametrize("seed", range(20))
def test_chance_and_improvement_are_no_alarm(seed):
    alarm, chance = DriftAlarm(), random.Random(seed)
    ended(BEFORE, 0.5, chance, alarm)
    for share in (0.5, 0.5, 0.2):
        ended(LATEST, share, chance, alarm)
        assert not any(alarm.alarms.values())


def test_time_outs_and_unresolveds_are_separate_signs():
    alarm = DriftAlarm()
    for _ in range(BEFORE):
        alarm.observe(event("completed", resolved=True))
    for number in range(LATEST):
        alarm.observe(
            event("failed", error={"code": "grader_timeout"}) if number % 3 == 0 else event("completed", resolved=True)
        )
    assert alarm.alarms == {"unresolved": False, "time_out": True}


def test_an_alarm_reports_running_sessions_and_load():
    few, many = EndedSession(frozenset(), 4, 0.5), EndedSession(frozenset({"unresolved"}), 64, 8.0)
    (drift,) = drifts([few] * 100, [many] * 100)
    assert "from 0% to 100%, sessions at once from 4 to 64, load per core from 0.5 to 8.0" in str(drift)
    assert drifts([few] * 10, [many] * 100) == []
