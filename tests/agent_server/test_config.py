"""Settings: each wrong value is refused with its variable, rule, value and remedy; typed values survive JSON."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from agent_server.__main__ import describe
from agent_server.config import Settings
from agent_server.setting_types import Address
from client.errors import ConfigError


@pytest.fixture
def required(tmp_path) -> dict[str, str]:
    """The variables without a default."""
    return {"R2E_DATA_PATH": str(tmp_path), "R2E_SIF_DIR": str(tmp_path), "AGENT_SERVER_WORK_DIR": str(tmp_path)}


def refusal(environment: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        Settings.from_environment(environment)
    return str(refused.value)


def test_defaults(required):
    settings = Settings.from_environment(required | {"AGENT_SERVER_URL": "http://x", "HOME": "/"})
    machine = {"sandbox_starts": 0, "gradings": 0}
    assert settings.limits | machine == {"train": 16, "eval": 16, "queue": 10_000} | machine
    assert (settings.reward, settings.base_urls, settings.penalties, settings.binds) == ("binary", (), {}, ())


def test_names_of_relax_are_understood(required):
    """Its scripts set these; 0 is no limit there."""
    relax = {"AGENT_SERVER_SHUFFLE": "0", "AGENT_SERVER_REWARD_CONCURRENCY": "24", "AGENT_SERVER_SEED": "42"}
    relax |= {"AGENT_SERVER_RECORD_TTL_SECONDS": "300", "AGENT_SERVER_OMP_NUM_THREADS": "2"}
    settings = Settings.from_environment(required | relax)
    assert (settings.shuffle, settings.gradings, settings.seed) == (False, 24, 42)
    assert (settings.record_retention_s, settings.sandbox_threads) == (300.0, 2)
    assert Settings.from_environment(required).shuffle
    assert Settings.from_environment(required | {"AGENT_SERVER_REWARD_CONCURRENCY": "0"}).gradings == 1_000_000
    both = {"AGENT_SERVER_REWARD_CONCURRENCY": "24", "AGENT_SERVER_GRADINGS": "24"}
    assert Settings.from_environment(required | both).gradings == 24
    message = refusal(required | both | {"AGENT_SERVER_GRADINGS": "8"})
    assert message == "AGENT_SERVER_REWARD_CONCURRENCY=24 and AGENT_SERVER_GRADINGS=8 are one setting; set one of them"
    wrong = refusal(required | {"AGENT_SERVER_REWARD_CONCURRENCY": "many"})
    assert wrong.startswith("AGENT_SERVER_REWARD_CONCURRENCY='many' must be")


SERVICE_LINKS = {  # as a pod has them beside the Services agent-server (two ports) and agent-server-metrics
    "AGENT_SERVER_SERVICE_HOST": "10.96.0.7",
    "AGENT_SERVER_SERVICE_PORT": "8600",
    "AGENT_SERVER_SERVICE_PORT_HTTP": "8600",
    "AGENT_SERVER_PORT": "tcp://10.96.0.7:8600",
    "AGENT_SERVER_PORT_8600_TCP": "tcp://10.96.0.7:8600",
    "AGENT_SERVER_PORT_8600_TCP_PROTO": "tcp",
    "AGENT_SERVER_PORT_8600_TCP_PORT": "8600",
    "AGENT_SERVER_PORT_8600_TCP_ADDR": "10.96.0.7",
    "AGENT_SERVER_PORT_8601_UDP": "udp://10.96.0.7:8601",
    "AGENT_SERVER_METRICS_SERVICE_HOST": "10.96.0.8",
    "AGENT_SERVER_METRICS_SERVICE_PORT": "9090",
    "AGENT_SERVER_METRICS_PORT": "tcp://10.96.0.8:9090",
    "AGENT_SERVER_METRICS_PORT_9090_TCP_ADDR": "10.96.0.8",
}


def test_service_links_of_kubernetes_are_no_settings(required):
    assert Settings.from_environment(required | SERVICE_LINKS) == Settings.from_environment(required)
    own_port = Settings.from_environment(required | SERVICE_LINKS | {"AGENT_SERVER_PORT": "8700"})
    assert own_port.port == 8700


@pytest.mark.parametrize(
    "variable", ["AGENT_SERVER_PORT", "AGENT_SERVER_SERVICE", "AGENT_SERVER_PORTS", "AGENT_SERVER_HOST_PORT"]
)
def test_what_only_resembles_a_service_link_is_refused(required, variable):
    assert refusal(required | {variable: "http://10.96.0.7:8600"}).startswith(variable)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AGENT_SERVER_PROT": "1"}, "AGENT_SERVER_PROT is not a setting; did you mean AGENT_SERVER_PORT"),
        ({"AGENT_SERVER_DATA_PATH": "x"}, "AGENT_SERVER_DATA_PATH is not a setting; set R2E_DATA_PATH"),
        (
            {"AGENT_SERVER_TRAIN_CONCURRENCY": "0"},
            "AGENT_SERVER_TRAIN_CONCURRENCY='0' must be greater than or equal to 1",
        ),
        ({"AGENT_SERVER_COMMAND_TIMEOUT_S": "9999"}, "one command must fit"),
        ({"AGENT_SERVER_BINDS": "wheels:/wheels"}, "'wheels:/wheels' is not HOST:INSIDE with absolute paths"),
        ({"AGENT_SERVER_BINDS": "/no/such/folder:/wheels"}, "/no/such/folder does not exist on this machine"),
        ({"AGENT_SERVER_BINDS": "/tmp:/x:rw"}, "AGENT_SERVER_BINDS='/tmp:/x:rw': '/tmp:/x:rw' is not HOST:INSIDE"),
        ({"AGENT_SERVER_BINDS": "/tmp:/x:rw"}, "take no options"),
        (
            {"AGENT_SERVER_PENALTIES": "LimitsExceeded"},
            "AGENT_SERVER_PENALTIES='LimitsExceeded': penalties are STATUS=NUMBER",
        ),
        ({"AGENT_SERVER_REWARD": "most"}, "AGENT_SERVER_REWARD='most' must be 'binary', 'partial_credit'"),
        ({"AGENT_SERVER_PROTECTED_PATHS": "maybe"}, "AGENT_SERVER_PROTECTED_PATHS='maybe'"),
        ({"AGENT_SERVER_GRADING_SANDBOX": "other"}, "AGENT_SERVER_GRADING_SANDBOX='other'"),
    ],
)
def test_a_wrong_setting_is_refused(required, variables, expected):
    assert expected in refusal(required | variables)


@pytest.mark.parametrize(
    "variables, needed_s",
    [
        ({}, 4 * 60 + 2400 + 5 + 900),
        ({"AGENT_SERVER_PREPARED_MIB": "0"}, 3 * 60 + 2400 + 5 + 900),
        ({"AGENT_SERVER_CANARY": "off"}, 3 * 60 + 2400 + 5 + 900),
        ({"AGENT_SERVER_SETUP_COMMAND": "true"}, 6 * 60 + 2400 + 5 + 900),
        ({"AGENT_SERVER_GRADING_SANDBOX": "same", "AGENT_SERVER_SETUP_COMMAND": "true"}, 2 * 60 + 2400 + 5 + 900),
    ],
)
def test_a_session_has_time_for_everything_that_has_a_limit_of_its_own(required, variables, needed_s):
    enough = {"AGENT_SERVER_SESSION_TIMEOUT_S": str(needed_s)}
    assert Settings.from_environment(required | variables | enough).session_timeout_s == needed_s
    too_short = {"AGENT_SERVER_SESSION_TIMEOUT_S": str(needed_s - 1)}
    assert f"= {needed_s}; raise it or lower the others" in refusal(required | variables | too_short)


@pytest.mark.parametrize(
    "url", ["good.example", "ftp://good.example", "http://user@good.example", "http://good.example:port"]
)
def test_a_wrong_base_url_is_refused(required, url):
    message = refusal(required | {"AGENT_SERVER_BASE_URLS": f"http://fine,{url}"})
    assert message.startswith(f"AGENT_SERVER_BASE_URLS='http://fine,{url}': {url!r}: ")


def test_a_missing_setting_is_named(required):
    del required["AGENT_SERVER_WORK_DIR"]
    assert refusal(required).startswith("AGENT_SERVER_WORK_DIR must be set")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node7", "localhost.evil"])
def test_an_open_port_needs_a_token_or_consent(required, host):
    environment = required | {"AGENT_SERVER_HOST": host}
    remedy = "set a token, listen on 127.0.0.1, or set AGENT_SERVER_OPEN_TO_ANYONE=yes"
    assert remedy in refusal(environment)
    assert Settings.from_environment(environment | {"AGENT_SERVER_TOKEN": "t"}).host == host
    assert Settings.from_environment(environment | {"AGENT_SERVER_OPEN_TO_ANYONE": "yes"}).host == host
    wrong = refusal(environment | {"AGENT_SERVER_OPEN_TO_ANYONE": "true"})
    assert wrong.startswith("AGENT_SERVER_OPEN_TO_ANYONE='true'")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_token(required, host):
    assert Settings.from_environment(required | {"AGENT_SERVER_HOST": host}).token == ""


def test_values_are_typed_and_survive_json(required, tmp_path):
    """The fork server gets the settings as JSON."""
    settings = Settings.from_environment(
        required
        | {
            "AGENT_SERVER_BASE_URLS": "http://10.0.0.1:8000/v1, https://good.example",
            "AGENT_SERVER_PENALTIES": "LimitsExceeded=-0.5,CommandFailed: 2=-1",
            "AGENT_SERVER_BINDS": f"{tmp_path}:/wheels,{tmp_path}",
            "AGENT_SERVER_EXCLUDE": str(tmp_path / "report.json"),
            "AGENT_SERVER_SANDBOX_NETWORK": "1",
            "AGENT_SERVER_SANDBOX_ALLOWED_NETWORKS": "10.1.0.0/16, 192.168.5.3",
            "AGENT_SERVER_TOKEN": "s3cret",
        }
    )
    assert settings.base_urls == (
        Address("http", "10.0.0.1", 8000, ("v1",)),
        Address("https", "good.example", 443, ()),
    )
    assert settings.penalties == {"LimitsExceeded": -0.5, "CommandFailed: 2": -1.0}
    assert settings.binds == ((tmp_path, "/wheels"), (tmp_path, str(tmp_path)))
    assert settings.sandbox_allowed_networks == (IPv4Network("10.1.0.0/16"), IPv4Network("192.168.5.3/32"))
    copy = Settings.model_validate_json(settings.model_dump_json())
    assert copy == settings and isinstance(copy.base_urls[0], Address) and isinstance(copy.binds[0][0], Path)


def test_the_help_shows_every_setting():
    lines = describe().splitlines()
    assert len(lines) == len(Settings.model_fields)
    assert any("AGENT_SERVER_PORT" in line and "8600" in line for line in lines)
