"""Removes a session's key from texts before they are kept or sent.

Relax's clients use one value as session id and as key, so a name may be a secret, too: it is treated like any text.
Invariant: the fingerprint that replaces a key is the same everywhere, so that names stay distinct and comparable.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

MIN_KEY_CHARACTERS = 8  # shorter keys ("none", "key") can be guessed, and are words of which texts are full

Value = TypeVar("Value")


def fingerprint(key: str) -> str:
    """Text that stands for the key: the same for the same key, and of no use to call the model."""
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


class Redaction:
    """Replaces one key by its fingerprint. A key of less than MIN_KEY_CHARACTERS is no secret, and stays."""

    def __init__(self, key: str):
        spellings = {key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe="")}
        self._spellings = sorted(spellings, key=len, reverse=True) if len(key) >= MIN_KEY_CHARACTERS else []
        self._fingerprint = fingerprint(key)

    def __call__(self, value: Value) -> Value:
        """The value without the key: text, UTF-8 bytes, or a structure of mappings and sequences. Others stay."""
        return self._redact(value) if self._spellings else value  # type: ignore[return-value]

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """For a stream: the data without the key, and the end of it that may begin a key, for the next call."""
        data = self(data)
        beginnings = (spelling[:n].encode() for spelling in self._spellings for n in range(1, len(spelling)))
        length = max((len(beginning) for beginning in beginnings if data.endswith(beginning)), default=0)
        return data[: len(data) - length], data[len(data) - length :]

    def _redact(self, value: object) -> object:
        if isinstance(value, str):
            for spelling in self._spellings:
                value = value.replace(spelling, self._fingerprint)
            return value
        if isinstance(value, bytes):
            for spelling in self._spellings:
                value = value.replace(spelling.encode(), self._fingerprint.encode())
            return value
        if isinstance(value, Mapping):
            return {self._redact(name): self._redact(content) for name, content in value.items()}
        if isinstance(value, list):
            return [self._redact(content) for content in value]
        if isinstance(value, tuple):
            return tuple(self._redact(content) for content in value)
        return value
