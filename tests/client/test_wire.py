"""Any body is parsed or refused with a message."""

from hypothesis import given
from hypothesis import strategies as st

from client.errors import InvalidRequest
from client.wire import SessionRequest


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_body_is_parsed_or_refused_clearly(body):
    try:
        SessionRequest.parse(body)
    except InvalidRequest as refused:
        assert str(refused)
