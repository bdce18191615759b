"""The client's HTTP parser: a response that breaks off is never taken for a whole one."""

import io

import pytest

from client.agent_client import read_response

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\n{}"


def test_a_whole_response_is_read():
    assert read_response(io.BytesIO(WHOLE)) == (200, b"{}", 7)


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_truncated_response_is_an_error(length):
    with pytest.raises(ValueError):
        read_response(io.BytesIO(WHOLE[:length]))
