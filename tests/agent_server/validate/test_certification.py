"""Verdicts on single cases: attacks without end, rows that believe printed text, rows that cannot be prepared."""

import json
from dataclasses import replace

import pytest

from agent_server.config import Settings
from agent_server.validate.certification import HOSTILE, TIMED_OUT, UNKNOWN, Cases, Conditions, certify
from agent_server.validate.hostile import HostileSubmission
from agent_server.validate.limits import setting_of_limit
from agent_server.validate.report import summarize
from agent_server.validate.verdicts import EMPTY, GOLD, Verdict
from tests.agent_server.grading.grading_bench import HARMLESS

NOT_MADE = HostileSubmission("print and exit at import", not_applicable="the gold patch changes no Python file")


@pytest.fixture
def settings(sample_rows, tmp_path):
    images, made = sample_rows
    return Settings(data_path=made["eval_script"].path, sif_dir=images, work_dir=tmp_path, grading_timeout_s=1.0)


@pytest.fixture
def cases(grading_bench, settings):
    bench = grading_bench("eval_script")
    task = replace(bench.task, row=bench.task.row | {"eval_script": "sleep 100"})
    return Cases(bench.dataset, task, 0, Conditions(settings))


def test_an_attack_without_end_has_failed_and_gold_without_end_has_too(cases):
    attack = cases.attack(HostileSubmission("exit at import", HARMLESS))
    assert (attack.as_expected, attack.resolved, attack.status, attack.error) == (True, False, TIMED_OUT, "")
    gold, empty = (cases.verdict(name, HARMLESS, expected=name == GOLD) for name in (GOLD, EMPTY))
    assert not gold.as_expected and gold.small_limit == "time (AGENT_SERVER_GRADING_TIMEOUT_S=1)"
    assert not empty.as_expected and empty.resolved is None and not empty.small_limit


def test_where_printed_text_is_believed_an_attack_that_cannot_print_proves_nothing(cases, monkeypatch):
    assert cases.attack(NOT_MADE).as_expected and cases.attack(NOT_MADE).not_applicable
    monkeypatch.setattr(type(cases.dataset), "trusts_printed_output", lambda self, task: True)
    verdict = cases.attack(NOT_MADE)
    assert not verdict.as_expected and verdict.error == f"{UNKNOWN}: {NOT_MADE.not_applicable}"
    assert cases.attack(replace(NOT_MADE, attack="exit at import")).as_expected  # it prints nothing anyway


def test_a_row_whose_attacks_cannot_be_made_is_not_trusted(grading_bench, settings, monkeypatch):
    bench = grading_bench("eval_script")
    conditions = Conditions(settings.model_copy(update={"grading_timeout_s": 60.0}))
    monkeypatch.setattr("agent_server.validate.hostile.submissions", lambda *arguments: 1 / 0)
    verdicts = list(certify(bench.row, bench.dataset, bench.task, 0, conditions))
    assert [(verdict.case, verdict.as_expected) for verdict in verdicts] == [
        (GOLD, True),
        (EMPTY, True),
        (HOSTILE, False),
    ]
    assert "ZeroDivisionError" in verdicts[-1].error
    wrong = bench.row | {"patch": "no patch"}
    [verdict] = certify(wrong, bench.dataset, bench.task, 0, conditions)
    assert verdict.case == GOLD and "its image and its columns do not fit" in verdict.error


def test_the_setting_of_a_limit(settings):
    settings = settings.model_copy(update={"sandbox_memory_mib": 100, "sandbox_cpu_s": 7.5})
    assert setting_of_limit("memory", settings) == "AGENT_SERVER_SANDBOX_MEMORY_MIB=100"
    assert setting_of_limit("cpu", settings) == "AGENT_SERVER_SANDBOX_CPU_S=7.5"
    assert setting_of_limit("output", settings) == setting_of_limit("", settings) == ""


def test_the_report_counts_each_kind_of_verdict(tmp_path):
    gold = Verdict("a", GOLD, 0, True, True, "graded", 1.0)
    attack = Verdict("a", "x", 0, False, False, "forged", 2.0)
    verdicts = [
        gold,
        attack,
        replace(attack, task_id="b", status="", resolved=None, seconds=0.0, not_applicable="no place"),
        replace(gold, task_id="b", resolved=False, limit="disk", setting="AGENT_SERVER_SANDBOX_DISK_MIB=1"),
        replace(gold, task_id="c", resolved=False),
    ]
    report = summarize(verdicts)
    report.write(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["excluded"] == ["b", "c"] and written["small_limits"] == {
        "b": "disk (AGENT_SERVER_SANDBOX_DISK_MIB=1)"
    }
    assert written["not_applicable"] == {"x": {"no place": ["b"]}}
    assert written["cases"]["x"] == {
        "graded": 1, "resolved": 0, "no_grade": 0, "forged": 1, "not_applicable": 1, "expected": False,
        "median_seconds": 2.0,
    }  # fmt: skip
