"""Every command of the documentation: run by test_commands.py, run by another test, or not run, with the reason.

Invariant: each command stands in exactly one of these tables, and each table names commands of the documentation only.
"""

RUN_AS_WRITTEN = (
    ".venv/bin/python -m trainer --help",
    ".venv/bin/python -m trainer check scripts/runs/qwen3_r2e_8gpu.toml",
    ".venv/bin/python -m setup.data names",
)

# Run by a function of tests/docs/test_commands.py that replaces addresses, paths or placeholders.
RUN_WITH_SUBSTITUTIONS = {
    "curl -s localhost:8600/sessions -d "
    '\'{"session_id": "mine-1", "group_id": "g1", "mode": "train", '
    '"base_url": "http://127.0.0.1:8000", "api_key": "key"}\'': "test_a_session_by_hand",
    "curl -s 'localhost:8600/sessions/ID-FROM-THAT-ANSWER?wait=60'": "test_a_session_by_hand",
    "curl -s localhost:8600/limits": "test_limits_by_hand",
    """curl -s -X PATCH localhost:8600/limits -H "Authorization: Bearer $(cat /scratch/agents/control_token)\""""
    """ -d '{"train": 32, "gradings": 4}'""": "test_limits_by_hand",
    ".venv/bin/python -m trainer check FILE": "test_a_configuration_is_checked",
    "export PYTHONPATH=/my/code AGENT_SERVER_DATASET=fizz:Fizz": "test_a_dataset_of_your_own",
    ".venv/bin/python -m agent_server validate --tasks rows.jsonl --images /data/images --dataset fizz:Fizz": (
        "test_a_dataset_of_your_own"
    ),
    "bash scripts/docs.sh": "test_the_site_builds_without_a_broken_link",
}

# Run with the same program and options of its own by this test.
RUN_BY_OTHER_TESTS = {
    "bash setup/check.sh": (
        "tests/setup/check/test_session.py::test_a_sound_node_passes_with_a_session_and_is_unchanged"
    ),
    """AGENT_SERVER_AGENT='sandbox: my-agent --task "$PROBLEM_STATEMENT_FILE"' bash scripts/serve_agents.sh""": (
        "tests/agent_server/agents/test_agents.py::test_a_program_in_the_sandbox_solves_the_task"
    ),
    ".venv/bin/python -m client.conformance http://127.0.0.1:8600": (
        "tests/client/conformance/test_conformance.py::test_our_agent_server_conforms"
    ),
    "export API_KEY=...": "tests/client/evaluation/test_evaluation.py::test_two_tasks_two_samples",
    ".venv/bin/python -m client.evaluation --server http://127.0.0.1:8600 --base-url https://api.openai.com/v1"
    " --model NAME --api-key-env API_KEY --split eval --samples 4 --concurrency 16 --temperature 1.0"
    """ --extra '{"top_p": 0.95}' --out runs/name""": (
        "tests/client/evaluation/test_evaluation.py::test_two_tasks_two_samples"
    ),
    ".venv/bin/python -m agent_server validate --tasks /data/rows --images /data/images --repeat 3"
    " --report validate.json": (
        "tests/agent_server/validate/test_validate.py::test_gold_is_one_and_empty_and_hostile_are_zero"
    ),
    ".venv/bin/python -m agent_server prepare": (
        "tests/agent_server/layers/test_prepared.py::test_rows_are_prepared_ahead"
    ),
    "AGENT_SERVER_EXCLUDE=validate.json bash scripts/serve_agents.sh": (
        "tests/agent_server/validate/test_validate.py::test_a_row_that_cannot_be_trusted_is_named_and_excluded"
    ),
    "R2E_DATA_PATH=/data/rows R2E_SIF_DIR=/data/images .venv/bin/python -m setup.images --jobs 8 --verify"
    " --json report.json": (
        "tests/setup/images/test_report.py::test_a_missing_image_is_reported_and_the_others_are_fetched"
    ),
    ".venv/bin/python -m setup.data fetch /data/rows train r2e-gym-subset --skip 100": (
        "tests/setup/data/test_fetch.py::test_two_modes_become_the_folder_that_the_agent_server_reads"
    ),
    ".venv/bin/python -m setup.data fetch /data/rows eval r2e-gym-subset --limit 100": (
        "tests/setup/data/test_fetch.py::test_two_modes_become_the_folder_that_the_agent_server_reads"
    ),
    ".venv/bin/python -m setup.data check /data/rows": (
        "tests/setup/data/test_fetch.py::test_check_compares_the_folder_with_its_manifest"
    ),
    ".venv/bin/python -m trainer run FILE train.steps=2": (
        "tests/trainer/test_launch.py::test_a_run_that_completes_leaves_no_process"
    ),
    ".venv/bin/python -m scripts.bench.soak": (
        "tests/agent_server/test_soak.py::test_cancels_and_kills_leave_nothing_behind"
    ),
}

SETS_UP_AND_SERVES = (
    "sets up the machine, then runs `python -m agent_server`, which the tests in tests/agent_server start"
)
TRAINS = "sets up the machine and trains for minutes; tests/trainer/test_launch.py runs `python -m trainer run`"
IS_THE_SUITE = "runs the test suite itself"
IS_LINT = "scripts/test.sh runs it before the tests"
NEEDS_REAL_ROWS = "needs a file of the dataset's rows, a Debian mirror and PyPI"
IS_A_BENCH = "measures for minutes on an idle machine"
NOT_RUN = {
    "bash scripts/run_train.sh": TRAINS,
    "bash scripts/run_train.sh FILE": TRAINS,
    "bash scripts/run_train.sh scripts/runs/quickstart.toml train.steps=4 eval.tasks=0": TRAINS,
    "bash scripts/test.sh": IS_THE_SUITE,
    "bash scripts/test.sh tests/client -k cancel": IS_THE_SUITE,
    ".venv/bin/python -m pytest tests/client": IS_THE_SUITE,
    "bash scripts/lint.sh": IS_LINT,
    ".venv/bin/ruff format .": "changes files; scripts/lint.sh runs its --check",
    ".venv/bin/pre-commit install": "changes the checkout's git hooks",
    "R2E_DATA_PATH=/data/rows R2E_SIF_DIR=/data/images AGENT_SERVER_PORT=8600 bash scripts/serve_agents.sh": (
        SETS_UP_AND_SERVES
    ),
    "R2E_DATA_PATH=/data/rows R2E_SIF_DIR=/data/images AGENT_SERVER_WORK_DIR=/scratch/agents"
    " AGENT_SERVER_TRAIN_CONCURRENCY=64 AGENT_SERVER_EVAL_CONCURRENCY=16 AGENT_SERVER_HOST=127.0.0.1"
    " AGENT_SERVER_PORT=8600 bash scripts/serve_agents.sh": SETS_UP_AND_SERVES,
    "R2E_DATA_PATH=rows.jsonl R2E_SIF_DIR=/data/images bash scripts/serve_agents.sh": SETS_UP_AND_SERVES,
    "apptainer build my__fizz__1.sif docker-daemon:my/fizz:1": "needs Docker",
    ".venv/bin/python -m scripts.swebench_images swebench_verified.jsonl /data/real": NEEDS_REAL_ROWS,
    ".venv/bin/python -m agent_server validate --tasks /data/real/rows.jsonl --images /data/real/images": (
        NEEDS_REAL_ROWS
    ),
    ".venv/bin/python -m scripts.bench.sandbox": IS_A_BENCH,
    ".venv/bin/python -m scripts.bench.agent_server": IS_A_BENCH,
    ".venv/bin/python -m scripts.bench.queue": IS_A_BENCH,
    ".venv/bin/python -m scripts.bench.grading": IS_A_BENCH,
    ".venv/bin/python -m scripts.bench.canary": IS_A_BENCH,
    ".venv/bin/python -m scripts.bench.preparation": IS_A_BENCH,
}
