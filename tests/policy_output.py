"""Outputs that a policy may write: arbitrary text, arbitrary JSON as arguments of a call, values that broke readers."""

import json

from hypothesis import strategies as st

TEXTS = st.text(st.characters(), max_size=20) | st.text(st.sampled_from("`\n\0<>{}\"'\\ud83 bash"), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
DEEP = "[" * 300 + "]" * 300  # pydantic writes no more than 255
ODD_ARGUMENTS = (
    '{"command": null}',
    '{"command": ["ls"]}',
    '{"command": 5}',
    '{"command": "a\\u0000b"}',
    '{"command": "echo \\ud83d"}',
    '{"command": NaN}',
    '{"command": 1e999}',
    f'{{"command": {"9" * 5000}}}',
    f'{{"command": {DEEP}}}',
    f'{{"command": "ls", "x": {DEEP}}}',
    f'{{"command": {"[" * 3000}',
    '{"command": "echo a", "command": {}}',
    "5",
    "",
)
ARGUMENTS = (
    st.sampled_from(ODD_ARGUMENTS)
    | TEXTS
    | VALUES.map(json.dumps)
    | VALUES.map(lambda value: json.dumps({"command": value}))
)
NAMES = st.just("bash") | TEXTS
