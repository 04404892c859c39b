"""What a PATCH does to a session, and how long an ended one is remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.whip.fragment import Fragment
from offhook.signaling.whip.links import ice_server_link
from offhook.signaling.whip.offer import MediaLine, Protocol
from offhook.signaling.whip.session import (
    MAX_TOMBSTONES,
    PATCHES,
    TOMBSTONE_S,
    Generation,
    Match,
    PatchAction,
    Session,
    SessionTable,
)


def session(room: str = "r", protocol: Protocol = Protocol.WHIP) -> Session[None]:
    return Session(protocol, room, MediaLine("audio", "0", "sendonly", "same"), None)


@pytest.mark.parametrize(
    ("ufrag", "if_match", "status"),
    [
        ("same", "{etag}", 204),
        ("same", "*", 204),
        ("same", '"*"', 204),
        ("same", None, 204),
        ("", None, 204),
        ("same", '"stale"', 412),
        ("same", "W/{etag}", 412),
        ("same", '"other", {etag}', 204),
        ("same", "nonsense", 412),
        ("new", "*", 200),
        ("new", "{etag}", 200),
        ("new", None, 428),
        ("new", '"stale"', 412),
    ],
)
def test_what_a_patch_does(ufrag: str, if_match: str | None, status: int) -> None:
    one = session()
    header = if_match and if_match.format(etag=one.etag)
    assert one.action(Fragment(ufrag), header).value == status


def test_the_table_is_whole() -> None:
    assert set(PATCHES) == {(g, m) for g in Generation for m in Match}


def test_a_restart_makes_the_old_tag_and_ufrag_stale() -> None:
    one = session()
    old = one.etag
    one.restarted("new")
    assert one.etag != old
    assert one.action(Fragment("same"), old) is PatchAction.STALE
    assert one.action(Fragment("new"), one.etag) is PatchAction.TRICKLE


@given(st.text())
def test_any_header_is_read(header: str) -> None:
    assert session().match(header) in (Match.NONE, Match.ANY, Match.STALE)


def test_session_urls_cannot_be_guessed() -> None:
    one, other = session(), session()
    assert one.path != other.path
    assert one.path.startswith("/whip/r/")
    assert len(one.id) >= 32


def test_an_ended_session_is_remembered_for_a_while() -> None:
    table: SessionTable[None] = SessionTable()
    one = session()
    table.add(one)
    assert table.find(one.path) is one
    assert table.publisher("r") is one
    table.end(one, 10)
    table.end(one, 11)
    assert table.find(one.path) is None
    assert table.publisher("r") is None
    assert table.has_ended(one.path, 10 + TOMBSTONE_S - 1)
    assert not table.has_ended(one.path, 10 + TOMBSTONE_S)
    assert not table.has_ended("/whip/r/another", 10)


def test_ended_sessions_do_not_pile_up() -> None:
    table: SessionTable[None] = SessionTable()
    ended = [session() for _ in range(MAX_TOMBSTONES + 1)]
    for one in ended:
        table.add(one)
        table.end(one, 0)
    assert not table.has_ended(ended[0].path, 0)
    assert table.has_ended(ended[-1].path, 0)


def test_players_are_not_publishers() -> None:
    table: SessionTable[None] = SessionTable()
    table.add(session(protocol=Protocol.WHEP))
    assert table.publisher("r") is None


def test_ice_servers_as_links() -> None:
    assert ice_server_link("stun:s.example:3478") == '<stun:s.example:3478>; rel="ice-server"'
    assert ice_server_link("turn:t.example?transport=udp", "u", 'a"b\\c') == (
        '<turn:t.example?transport=udp>; rel="ice-server"; username="u"; '
        'credential="a\\"b\\\\c"; credential-type="password"'
    )
