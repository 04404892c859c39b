"""Trickle ICE fragments: as clients send them, and as anybody may send them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.whip.fragment import (
    MAX_LINES,
    Fragment,
    FragmentError,
    TrickledCandidate,
    parse_fragment,
    write_fragment,
)

HOST = "candidate:1 1 udp 2130706431 192.0.2.1 3478 typ host"
TCP = "candidate:2 1 tcp 1518280447 192.0.2.1 9 typ host tcptype active"
PWD = "x" * 24


def test_a_fragment_of_mediamtx_and_medooze() -> None:
    text = (
        f"a=ice-ufrag:EsAw\r\na=ice-pwd:{PWD}\r\n"
        f"m=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\na={HOST}\r\na={TCP}\r\n"
        "a=end-of-candidates\r\n"
    )
    fragment = parse_fragment(text)
    assert (fragment.ufrag, fragment.pwd) == ("EsAw", PWD)
    assert fragment.candidates == (
        TrickledCandidate(HOST, "0", 0),
        TrickledCandidate(TCP, "0", 0),
    )
    assert [c.transport for c in fragment.candidates] == ["udp", "tcp"]
    assert fragment.ended


def test_the_example_of_rfc_8840() -> None:
    """§9.3: credentials of the m-lines, and attributes that concern nobody here."""
    text = (
        "a=ice-pacing:50\na=ice-options:trickle ice2\na=group:BUNDLE bar\n"
        f"m=audio 9 RTP/AVP 0\na={HOST}\na=mid:foo\na=ice-ufrag:4ZcD\na=ice-pwd:{PWD}\n"
        f"m=audio 9 RTP/AVP 0\na=mid:bar\na={TCP}\na=ice-ufrag:other\na=ice-pwd:{PWD}\n"
    )
    fragment = parse_fragment(text)
    assert (fragment.ufrag, fragment.options) == ("4ZcD", ("trickle", "ice2"))
    assert [(c.mid, c.index) for c in fragment.candidates] == [("foo", 0), ("bar", 1)]
    assert not fragment.ended


def test_a_fragment_may_have_credentials_alone_or_nothing() -> None:
    assert parse_fragment(f"a=ice-ufrag:abcd\r\na=ice-pwd:{PWD}\r\n") == Fragment("abcd", PWD)
    assert parse_fragment("") == Fragment()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "not an SDP line"),
        ("candidate:1", "not an SDP line"),
        (f"a={HOST}\r\n", "before the first m-line"),
        ("a=ice-ufrag:abc\r\n", "invalid ice-ufrag"),
        ("a=ice-pwd:short\r\n", "invalid ice-pwd"),
        (f"a=ice-ufrag:{'x' * 257}\r\n", "invalid ice-ufrag"),
        ("a=b\r\n" * (MAX_LINES + 1), "lines"),
    ],
)
def test_what_is_malformed_is_named(text: str, why: str) -> None:
    with pytest.raises(FragmentError, match=why):
        parse_fragment(text)


credentials = st.text("abcXYZ019+/", min_size=22, max_size=40)
candidates = st.lists(st.text("udptch:. 0123456789", max_size=60), max_size=5)


@given(credentials, credentials, candidates, st.booleans())
def test_what_is_written_can_be_read(ufrag: str, pwd: str, values: list[str], ended: bool) -> None:
    trickled = tuple(TrickledCandidate(f"candidate:{v}", "0", 0) for v in values)
    fragment = Fragment(ufrag, pwd, trickled, ended, ("ice2",))
    assert parse_fragment(write_fragment(fragment, "audio", "0")) == fragment


lines = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            ["m=audio 9 X 0", "a=mid:0", "a=mid", f"a={HOST}", "a=ice-ufrag:abcd", "a=candidate:"]
        ),
    ),
    max_size=12,
)


@given(lines)
def test_anything_is_read_or_refused(texts: list[str]) -> None:
    with contextlib.suppress(FragmentError):
        for candidate in parse_fragment("\r\n".join(texts)).candidates:
            assert candidate.transport == candidate.transport.lower()
