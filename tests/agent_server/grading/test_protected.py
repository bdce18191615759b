"""Protected paths: policies, and tricks that hide, block or replace protected files."""

import json
import shlex
from dataclasses import replace

import pytest

from agent_server.grading.protected_paths import paths_in_script
from tests.agent_server.grading.grading_bench import (
    CONFIG,
    PLANT_CONFTEST,
    SOLVE,
    run,
    solved_and_lost,
    whole_repository,
)

PLANT = (
    f"{SOLVE} && echo 'raise SystemExit(0)' >conftest.py && echo '[pytest]' >pytest.ini "
    "&& sed -i s/calc/evil/ setup.cfg && mkdir -p .github/workflows && echo x >.github/workflows/ci."
    "yml && echo 'assert 0' >tests/test_core.py"
)


PLANTED = ("./.github/workflows/ci.yml", "./conftest.py", "./pytest.ini", "./setup.cfg", "./tests/test_core.py")


def test_protected_paths_are_stripped_and_the_rest_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(PLANT))
    assert (found.resolved, found.status, found.touched, found.policy) == (True, "graded", PLANTED, "strip")
    assert (
        found.patch == {"files": 6, "added_lines": 6, "removed_lines": 7, "bytes": found.patch["bytes"]}
        and found.applied_by == "git apply"
    )


def test_protected_paths_may_be_a_reason_to_reject(grading_bench):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(PLANT), replace(CONFIG, protected_paths="reject"))
    assert (found.resolved, found.status, found.touched, found.tests) == (False, "rejected", PLANTED, {})
    assert swesmith.grade(swesmith.patch(SOLVE), replace(CONFIG, protected_paths="reject")).resolved


def test_allow_restores_the_rows_own_tests(grading_bench):
    swesmith = grading_bench("swesmith")
    allow = replace(CONFIG, protected_paths="allow")
    assert not swesmith.grade(swesmith.patch(PLANT), allow).resolved  # its conftest ends pytest
    found = swesmith.grade(swesmith.patch(f"{SOLVE} && echo 'assert 0' >tests/test_core.py"), allow)
    assert found.resolved and found.touched == ("./tests/test_core.py",)


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir evil && cp tests/* evil/ && rm -r tests && ln -s evil tests",
        "rm -r tests && ln -s calc tests && echo 'def test_mean(): pass' >calc/test_core.py",
        (
            "echo '*' >.gitignore && git add -f .gitignore && echo 'raise SystemExit(0)' >conftest.py "
            "&& git add -f conftest.py"
        ),
        (
            "mkdir -p pytest && echo 'raise SystemExit(0)' >pytest/__init__.py && echo 'raise "
            "SystemExit(0)' >sitecustomize.py"
        ),
        "ln -s /etc/hostname conftest.py",
    ],
    ids=["tests moved", "tests are a link", "hidden by gitignore", "another pytest", "conftest is a link"],
)
def test_tricks_with_paths_gain_nothing_and_cost_nothing(grading_bench, trick):
    swesmith = grading_bench("swesmith")
    lost, solved = swesmith.grade(swesmith.patch(trick)), swesmith.grade(swesmith.patch(f"{SOLVE}; {trick}"))
    assert not lost.resolved and lost.touched
    assert solved.resolved, solved.log


@pytest.mark.parametrize(
    "trick",
    [
        "echo 'calc/test_core.py working-tree-encoding=UTF-16' >.gitattributes",
        "echo 'nothing' >calc/checks",
        "mkdir -p calc/checks/test_more.py && echo x >calc/checks/test_more.py/x",
        "ln -s / calc/checks",
        "mkdir -p x && git mv calc/test_core.py x/ && mkdir calc/test_core.py && echo x >calc/test_core.py/x",
    ],
    ids=[
        "attributes",
        "a file for its folder",
        "a folder for its file",
        "a link for its folder",
        "a folder for an old file",
    ],
)
def test_nothing_blocks_the_tests_from_being_restored(beside_bench, trick):
    solved, lost = solved_and_lost(beside_bench, trick)
    assert not lost.resolved, lost.log
    assert solved.resolved, (solved.touched, solved.log)


@pytest.mark.parametrize(
    "folder",
    ["a\nb", "a  b", "a b", "-a", "a'b", 'a"b', "\u00e9", "a\\b", "a*"],
    ids=["newline", "two spaces", "space", "dash", "quote", "double quote", "accent", "backslash", "star"],
)
def test_no_name_hides_a_protected_file(grading_bench, folder):
    swesmith = whole_repository(grading_bench("swesmith"))
    where = shlex.quote(f"./{folder}")
    solved, lost = solved_and_lost(
        swesmith,
        f"mkdir {where} && {PLANT_CONFTEST} >{where}/conftest.py && echo 'def test_x(): pass' >{where}/test_x.py",
    )
    # The second one is no protected name: it was collected.
    assert not lost.resolved and lost.touched == (f"./{folder}/conftest.py", f"./{folder}/test_x.py"), lost.touched
    assert solved.resolved, solved.log


def test_no_undecodable_name_hides_a_protected_file(grading_bench):
    swesmith = whole_repository(grading_bench("swesmith"))
    where = "$(printf 'a\\xffb')"
    solved, lost = solved_and_lost(swesmith, f"mkdir {where} && {PLANT_CONFTEST} >{where}/conftest.py")
    assert not lost.resolved and len(lost.touched) == 1, lost.touched
    assert json.dumps(lost.as_dict()).encode() and solved.resolved, solved.log


def test_a_links_target_does_not_forge_a_digest(grading_bench):
    swesmith = whole_repository(grading_bench("swesmith"))
    image = swesmith.sandbox()
    digest = run(image, "sha1sum <setup.cfg").output.split()[0]
    target = f"a\n{digest}  ./setup.cfg\nb"
    evil = (
        f"printf '[tool:pytest]\\naddopts = -p evil' >setup.cfg && {PLANT_CONFTEST} >evil.py "
        f"&& mkdir z && ln -s {shlex.quote(target)} z/conftest.py"
    )
    _, lost = solved_and_lost(swesmith, evil)
    assert not lost.resolved and "./setup.cfg" in lost.touched, lost.touched


def test_paths_of_tests_in_a_script():
    script = (
        "cd /testbed\ngit apply - <<'EOF_1'\n+++ b/django/test/x.py\nEOF_1\n./tests/runtests.py "
        "--v 2 core && bin/test 'sub/a test/x.py::test_y'; make check; bash /testbed/run.sh "
        "-k test calc/core.py"
    )
    assert list(paths_in_script(script)) == [
        "tests/runtests.py",
        "bin/test",
        "test/x.py",
        "run.sh",
        "test",
        "Makefile",
        "makefile",
        "GNUmakefile",
    ]


def test_modes_of_protected_files_are_restored(grading_bench):
    django = grading_bench("swebench_old")
    solved, lost = solved_and_lost(django, "chmod -x tests/runtests.py")
    assert solved.resolved and not lost.resolved
    assert solved.touched == ("./tests/runtests.py",)


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/fd", "conftest.py", "/nowhere"])
def test_a_link_to_an_endless_file_is_not_followed(grading_bench, target):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(f"{SOLVE}; ln -s {target} conftest.py; ln -s {target} tests/data"))
    assert found.resolved and found.touched == ("./conftest.py", "./tests/data")


@pytest.mark.parametrize("folder", ["tests", "other"])
def test_thousands_of_protected_files_are_graded(grading_bench, folder):
    swesmith = grading_bench("swesmith")
    made = (
        f"mkdir -p {folder} && cd {folder} && for i in $(seq 3000); do mkdir d$i; echo x >d$i/conftest.py"
        f"; done; cd ..; {SOLVE}"
    )
    found = swesmith.grade(swesmith.patch(made))
    assert found.resolved and len(found.touched) == 3000


def test_a_conversion_that_fails_loses_no_submission(beside_bench):
    """The changed time makes git read the file again, which the attribute makes impossible."""
    attribute = "echo 'calc/test_core.py working-tree-encoding=UTF-16' >.gitattributes"
    broken = f"{attribute}; touch -d 2001-01-01 calc/test_core.py"
    assert beside_bench.grade(beside_bench.patch(f"{SOLVE}; {broken}")).resolved
