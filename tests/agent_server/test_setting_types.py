"""Parsers of settings: tables from good text, and a refusal that names the entry from any other."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.setting_types import parse_base_urls, parse_binds, parse_networks, parse_penalties


def test_penalties_become_a_table():
    assert parse_penalties("LimitsExceeded=-0.5,FormatError=-0.2") == {"LimitsExceeded": -0.5, "FormatError": -0.2}
    assert parse_penalties(" CommandFailed: 2 = -1 , TimeExceeded=-1e-2,") == {
        "CommandFailed: 2": -1.0,
        "TimeExceeded": -0.01,
    }
    assert parse_penalties("") == parse_penalties(" , ") == {}


@pytest.mark.parametrize(
    ("setting", "entry"),
    [
        ("LimitsExceeded", "LimitsExceeded"), ("=-0.5", "=-0.5"),
        ("Limits Exceeded=-0.5", "Limits Exceeded"),
        ("A:=-1", "A:"), ("A=", "A="), ("A=half", "half"), ("A=nan", "nan"), ("A=inf", "inf"),
        ("A=0.5", "0.5"), ("A=-1.5", "-1.5"),
        ("A=-0.5;B=-0.5", "A=-0.5;B"), ("B=-0.1,A=-0.1,B=-0.2", "'B'"),
    ],
)  # fmt: skip
def test_a_wrong_penalty_is_refused_with_its_entry(setting, entry):
    with pytest.raises(ValueError, match="Write|Leave") as refused:
        parse_penalties(setting)
    assert entry in str(refused.value)


@given(st.text("AB=-0.5,: 1e\n"))
def test_any_text_is_parsed_or_refused(text):
    try:
        penalties = parse_penalties(text)
    except ValueError as refused:
        assert str(refused)
    else:
        assert all(math.isfinite(number) and -1.0 <= number <= 0.0 for number in penalties.values())


def test_empty_lists_are_empty():
    assert parse_base_urls(" , ") == parse_binds(" , ") == parse_networks(" , ") == ()


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("10.1.0.0/16,10.1.2.3/16", "10.1.2.3/16 has host bits set; give IPv4 networks like 10.1.0.0/16"),
        ("fd00::/8", "in 'fd00::'; give IPv4 networks"),
        ("example.org", "in 'example.org'; give IPv4 networks"),
        ("0.0.0.0/0", "0.0.0.0/0 has loopback, multicast or reserved addresses"),
        ("127.0.0.1", "127.0.0.1 has loopback, .* narrow it"),
    ],
)
def test_a_network_that_cannot_be_allowed_is_refused(setting, problem):
    with pytest.raises(ValueError, match=problem):
        parse_networks(setting)
