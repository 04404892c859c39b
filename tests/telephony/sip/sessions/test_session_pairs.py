"""Two sessions over a bad network: whatever their users do, both come to rest and agree."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.telephony.sip.sessions.session_events import (
    OfferReceived,
    ReferReceived,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_table import SessionState
from tests.telephony.sip.session_peers import NO_TIMER, End, Network

ACTIONS = (
    "ring",
    "early media",
    "accept",
    "refuse",
    "hang up",
    "reoffer",
    "press a key",
    "refer",
    "progress of a refer",
)


def act(end: End, action: str) -> None:
    session, now = end.session, end.network.now
    if session is None:
        return
    match action:
        case "ring":
            end.ring(now, early=False)
        case "early media":
            end.ring(now, early=True)
        case "accept":
            end.accept(now)
        case "refuse":
            session.refuse(603, "", now)
        case "hang up":
            session.hang_up(now, "enough")
        case "reoffer":
            end.reoffer(now)
        case "press a key":
            session.info_dtmf("5", now)
        case "refer":
            session.refer(end.uri, now)
        case "progress of a refer":
            session.refers.accept(now)
            session.refers.notify(200 if now % 0.2 < 0.1 else 180, "word", now)


def decide(end: End, offer: OfferReceived) -> None:
    """Most offers are answered at once, some are refused, some are slept over."""
    assert end.session is not None
    chance = end.random.random()
    if chance < 0.7:
        end.answer(offer)
    elif chance < 0.9:
        end.session.refuse_offer(488, end.network.now)


def play(
    network: Network, a: End, b: End, script: list[tuple[float, bool, str]], offer: bool
) -> None:
    a.call(b, network.now, offer)
    for pause, first, action in script:
        network.run(network.now + pause)
        act(a if first else b, action)


SCRIPTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.7, 5.0]), st.booleans(), st.sampled_from(ACTIONS)
    ),
    max_size=14,
)
TALKING = [(0.1, False, "ring"), (0.1, False, "accept"), (0.5, True, "press a key")]
WEATHER = st.sampled_from([(0.0, 0.0, 0.0), (0.1, 0.3, 0.1), (0.3, 0.3, 0.5)])


def check(network: Network, a: End, b: End) -> None:
    states = {end.session.state if end.session else SessionState.ENDED for end in (a, b)}
    assert states in ({SessionState.ESTABLISHED}, {SessionState.ENDED}), states
    for end in (a, b):
        assert len(end.ends) == (1 if end.session and states == {SessionState.ENDED} else 0), (
            end.events
        )
        assert end.get_timer() is None
        assert end.session is None or end.session.over == (states == {SessionState.ENDED})
    if states == {SessionState.ESTABLISHED}:
        assert a.described == b.described[::-1]
        assert None not in a.described


@given(SCRIPTS, WEATHER, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_from_any_interleaving_both_ends_come_to_rest_and_agree(
    script: list[tuple[float, bool, str]],
    weather: tuple[float, float, float],
    taken: bool,
    offer: bool,
    reliable: bool,
    seed: int,
) -> None:
    loss, double, jitter = weather
    network = Network(seed, loss, double, jitter=jitter)
    a = network.end("a", "192.0.2.1")
    b = network.end("b", "192.0.2.2", replace(NO_TIMER, reliable=reliable))
    a.decide = b.decide = decide
    a.random, b.random = random.Random(seed), random.Random(seed + 1)
    play(network, a, b, TALKING + script if taken else script, offer)
    network.run(network.now + 400.0)
    check(network, a, b)


@settings(max_examples=60)
@given(SCRIPTS, st.floats(0.0, 20.0), st.booleans(), st.integers(0, 2**16))
def test_when_the_network_fails_for_good_both_ends_of_a_call_with_a_timer_end(
    script: list[tuple[float, bool, str]], cut: float, offer: bool, seed: int
) -> None:
    network = Network(seed, 0.1, 0.3, jitter=0.1)
    timed = SessionSettings(session_seconds=120)
    a, b = network.end("a", "192.0.2.1", timed), network.end("b", "192.0.2.2", timed)
    network.drop = lambda data: network.now > cut
    play(network, a, b, TALKING + script, offer)
    network.run(network.now + 600.0)
    for end in (a, b):
        assert end.session is None or (end.session.over and len(end.ends) == 1)
        assert end.get_timer() is None


@settings(max_examples=settings.default.max_examples // 5)
@given(SCRIPTS, st.booleans(), st.integers(0, 2**16))
def test_a_call_with_a_timer_outlives_a_bad_network_until_somebody_hangs_up(
    script: list[tuple[float, bool, str]], first: bool, seed: int
) -> None:
    network = Network(seed)
    timed = SessionSettings(session_seconds=120)
    a, b = network.end("a", "192.0.2.1", timed), network.end("b", "192.0.2.2", timed)
    calm = [row for row in script if row[2] not in ("hang up", "refuse")]
    play(network, a, b, TALKING, True)
    network.loss, network.double, network.jitter = 0.2, 0.3, 0.2
    for pause, end, action in calm:
        network.run(network.now + pause)
        act(a if end else b, action)
    network.run(1000.0)
    assert a.session is not None
    assert b.session is not None
    assert not a.ends, a.ends
    assert not b.ends, b.ends
    (a if first else b).session.hang_up(network.now)
    network.run(1200.0)
    assert a.session.over
    assert b.session.over


def test_a_refer_at_a_random_moment_is_told_of() -> None:
    network = Network()
    a, b = network.end("a", "192.0.2.1"), network.end("b", "192.0.2.2")
    play(network, a, b, [*TALKING, (1.0, True, "refer"), (1.0, False, "progress of a refer")], True)
    network.run(10.0)
    assert any(isinstance(event, ReferReceived) for event in b.events)
