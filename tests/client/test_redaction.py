"""A key leaves every spelling of a text; a short one is a word and stays."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.redaction import MIN_KEY_CHARACTERS, Redaction, fingerprint

KEYS = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=MIN_KEY_CHARACTERS)


@given(KEYS)
def test_no_spelling_of_a_key_is_left(key):
    for spelling in (key, json.dumps({"error": key}), repr({"key": key}), f"http://x/?k={quote(key, safe='')}"):
        redacted = Redaction(key)(f"<{spelling}>")
        assert fingerprint(key) in redacted and key not in redacted


def test_structures_and_bytes_are_redacted_throughout():
    key = "sk-0123456789"
    value = {"a": [f"x {key}", 1, None, (key, 2.5)], key: True, "b": key.encode()}
    mark = fingerprint(key)
    assert Redaction(key)(value) == {"a": [f"x {mark}", 1, None, (mark, 2.5)], mark: True, "b": mark.encode()}


@pytest.mark.parametrize("key", ["k", "none", "EMPTY", "7 chars"])
def test_a_short_key_is_no_secret(key):
    assert Redaction(key)(f"a {key} b") == f"a {key} b"


def test_a_fingerprint_is_stable():
    """It is stored: a later version must know the sessions of an earlier one."""
    assert fingerprint("sk-0123456789") == "key-5c85b6dd8ccb9a87259d5b71753c6c4a"
