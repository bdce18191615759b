"""Configurations: all problems in one error, with the closest valid keys; the shipped files are valid."""

from pathlib import Path

import pytest

from client.errors import ConfigError, SetupError
from trainer.config.checks import missing_on_this_machine, require_machine
from trainer.config.file import load_config, to_toml

RUNS = Path(__file__).parents[3] / "scripts" / "runs"
QUICKSTART = RUNS / "quickstart.toml"


def problems(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("file", sorted(RUNS.glob("*.toml")), ids=lambda file: file.name)
def test_shipped_files_are_valid(file):
    assert load_config(file, [])


def test_overrides_are_read_as_toml_and_fall_back_to_text():
    config = load_config(
        QUICKSTART,
        [
            "train.steps=2",
            "run.name=2026",
            "actor.learning_rate=1e-4",
            'engine.args=["--a", "b"]',
            "engine.cpu_threads=0-3",
        ],
    )
    assert (config.train.steps, config.run.name, config.actor.learning_rate) == (2, "2026", 1e-4)
    assert (config.engine.args, config.engine.cpu_threads) == (["--a", "b"], "0-3")


def test_the_gateways_public_url_may_have_a_path():
    for url, expected in [
        ("http://gpu:8200", "http://gpu:8200"),
        ("https://h/agentic_api/v2/", "https://h/agentic_api/v2"),
    ]:
        assert load_config(QUICKSTART, [f"gateway.public_url={url}"]).gateway.url == expected
    for url in ("gpu:8200", "http://user@gpu/x", "http://gpu/x?y=1", "http://gpu/x y"):
        assert "gateway.public_url" in problems(f"gateway.public_url={url}")


def test_an_override_reaches_into_tables():
    config = load_config(QUICKSTART, ["gateway.chat_template_kwargs.enable_thinking=false"])
    assert config.gateway.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    "override, named",
    [
        ("rollout.group_sise=4", "unknown key rollout.group_sise. Did you mean rollout.group_size?"),
        ("rolout.group_size=4", "unknown key rolout. Did you mean rollout?"),
        ("train.steps=soon", "train.steps = 'soon'"),
        ("rollout.group_size=1", "rollout.group_size = 1"),
        ("actor.device=gpu", "actor.device = 'gpu'"),
        ("run.name=../x", "run.name = '../x'"),
        ("group_size=4", "section.key=value"),
        ("rollout.group_size", "section.key=value"),
        ("rollout.group_size.x=4", "group_size is a value"),
        ("model.path=$NO_SUCH_VARIABLE/x", "$NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_wrong_key_or_value_is_named(override, named):
    assert named in problems(override)


@pytest.mark.parametrize(
    "overrides, named",
    [
        (
            ["rollout.client_timeout_s=100"],
            "rollout.client_timeout_s (100) must be longer than agent_server.session_timeout_s",
        ),
        (["agent_server.session_timeout_s=300"], "agent_server.session_timeout_s (300) must hold"),
        (["agent_server.command_timeout_s=301"], "agent_server.command_timeout_s (301)"),
        (
            ["agent_server.train_concurrency=3"],
            "agent_server.train_concurrency (3) must hold a whole group: at least rollout.group_size (4)",
        ),
        (
            ["agent_server.eval_concurrency=2"],
            "agent_server.eval_concurrency (2) must hold a whole group: at least eval.samples (4)",
        ),
        (["rollout.max_clients=3"], "rollout.max_clients (3)"),
        (["rollout.max_tokens=1024"], "rollout.max_tokens (1024) leaves no room"),
        (["eval.tasks=0", "eval.every_steps=3"], "eval.every_steps (3)"),
        (["agent_server.port=8200"], "agent_server.port and gateway.port are both 8200"),
        (["agent_server.url=http://cpu-node:8600"], "cannot reach the gateway at http://127.0.0.1:8200"),
    ],
)
def test_contradictions_are_named(overrides, named):
    assert named in problems(*overrides)


def test_all_problems_are_named_at_once():
    text = problems("train.steps=0", "eval.taks=3", "actor.learning_rate=-1")
    assert all(part in text for part in ("train.steps", "eval.taks", "actor.learning_rate"))


def test_a_missing_key_is_named_with_its_meaning(tmp_path):
    (tmp_path / "short.toml").write_text("[train]\nsteps = 1\n")
    with pytest.raises(ConfigError, match="model is missing"):
        load_config(tmp_path / "short.toml", [])
    (tmp_path / "short.toml").write_text("[model]\n")
    with pytest.raises(ConfigError, match=r"model.path is missing: Hugging Face-format model"):
        load_config(tmp_path / "short.toml", [])


def test_an_agent_server_of_the_run_needs_rows_and_images(tmp_path):
    file = tmp_path / "run.toml"
    lines = QUICKSTART.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(("data_path", "sif_dir"))))
    with pytest.raises(ConfigError, match="agent_server.data_path is missing"):
        load_config(file, [])
    assert load_config(file, ["agent_server.url=http://127.0.0.1:8600"])


def test_a_file_that_is_missing_or_not_toml(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean .*quickstart.toml"):
        load_config(RUNS / "quickstrat.toml", [])
    (tmp_path / "x.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(tmp_path / "x.toml", [])


def test_the_resolved_configuration_reads_back_equal(tmp_path):
    config = load_config(
        QUICKSTART, ['engine.args=["--a", "b \\"c\\""]', "gateway.chat_template_kwargs.enable_thinking=false"]
    )
    (tmp_path / "resolved.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "resolved.toml", []) == config


@pytest.fixture
def existing_paths(tmp_path):
    """Overrides with paths that exist on this machine."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 2048}')
    (tmp_path / "tasks").mkdir()
    return [
        f"model.path={tmp_path}/model",
        f"agent_server.data_path={tmp_path}/tasks",
        f"agent_server.sif_dir={tmp_path}",
    ]


def test_a_missing_path_is_named_with_the_closest(existing_paths, tmp_path):
    assert missing_on_this_machine(load_config(QUICKSTART, existing_paths)) == []
    overrides = [*existing_paths, f"agent_server.data_path={tmp_path}/taks", "model.path=/nowhere"]
    with pytest.raises(SetupError) as caught:
        require_machine(load_config(QUICKSTART, overrides))
    message = str(caught.value)
    assert f"agent_server.data_path ({tmp_path}/taks) does not exist. Did you mean {tmp_path}/tasks?" in message
    assert "model.path (/nowhere) has no config.json" in message


def test_a_context_beyond_the_models_positions_is_named(existing_paths):
    config = load_config(QUICKSTART, [*existing_paths, "engine.max_model_len=4096"])
    assert "the model's 2048 positions" in missing_on_this_machine(config)[0]
