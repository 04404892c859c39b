"""Phones behind Kamailio whose edge dies in the midst of a call."""

import asyncio
import shutil
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Literal

import numpy as np
import pytest

from benchmarks.callers.caller import Caller, Habits, SpokenLine
from benchmarks.callers.ear import Ear
from benchmarks.callers.phone import PhoneCall
from benchmarks.callers.records import CallRecord, TurnRecord
from benchmarks.callers.rtp import Pace
from benchmarks.callers.servers import own_servers
from benchmarks.callers.signalling import Signalling
from benchmarks.processes.own_server import HOST
from benchmarks.servers.kamailio import Kamailio, kamailio
from benchmarks.speech.lines import encode
from benchmarks.speech.number_words import LEAD_MS, level_of, line, sound
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.web.app.callers.way import Way
from offhook.web.edge.resume.recovery import MAX_RECOVERING, SavedCallState
from tests.deploy.site import QUICK
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.support.waiting import until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    ToneHost,
    endpoint,
    is_tone,
    needs_baresip,
    needs_kamailio,
)
from tests.web.edge.resume.test_recovery_edges import dies, pair, saved
from tests.web.edge.resume.test_resume import ResumableEdge

needs_redis = pytest.mark.skipif(
    not shutil.which("redis-server"), reason="redis-server is not installed"
)
pytestmark = [pytest.mark.slow, needs_kamailio, needs_redis, pytest.mark.usefixtures("loopback")]

PHONES = 4
MANY = 20
SECONDS = 40
"""Of a call."""
OTHER_TONE = 620
"""The voice of the second server's agent, in Hz."""


def caller(number: int, turns: list[TurnRecord]) -> Caller:
    chance = Random(number)
    lines = [line(4, chance) for _ in range(8)]
    spoken = [
        SpokenLine(
            encode(sound(words, lead_ms=LEAD_MS), PcmuEncoder()), tuple(map(level_of, words))
        )
        for words in lines
    ]
    habits = Habits(interrupting=0, pressing=0, call_s=1000)
    record, ear = CallRecord(f"sip {number}", "sip", 0.0), Ear(RATE_IN, True)
    record.number = f"+1{number:06}"
    silence = encode(np.zeros(RATE_OUT, np.int16), PcmuEncoder())
    return Caller(record, turns, ear, spoken, silence, habits, chance, array("f"))


async def silent_ms(call: Caller) -> float:
    """Waits until a call has moved and the agent speaks: ms after its last packet."""
    await until(lambda: call.record.moved_ms is not None)
    moved_at = monotonic()
    await until(lambda: call.ear.began_at is not None)
    assert call.record.moved_ms is not None
    assert call.ear.began_at is not None
    return call.record.moved_ms + max(0.0, call.ear.began_at - moved_at) * 1000


async def test_words_after_kill_9_are_heard_and_answered(record_property):
    turns: list[TurnRecord] = []
    async with own_servers(2, 1, False) as servers:
        signalling, pace = Signalling(), Pace()
        calls: list[tuple[Caller, PhoneCall]] = []
        try:
            host, _, port = servers.sip[0].rpartition(":")
            for number in range(PHONES):
                one = caller(number, turns)
                call = PhoneCall(one, Way(), Random(number), signalling)
                assert await call.connect_to((host, int(port)))
                one.connect(monotonic())
                pace.add(call)
                calls.append((one, call))
            await asyncio.sleep(SECONDS / 4)
            killed = monotonic()
            await servers.apply("edge")
            waiting = [asyncio.create_task(silent_ms(one)) for one, _ in calls]
            await until(lambda: sum(task.done() for task in waiting) == PHONES // 2)
            since = monotonic()
            await asyncio.sleep(SECONDS / 2)
            assert not any(call.closed for _, call in calls)
            moved = [one for one, task in zip(calls, waiting, strict=True) if task.done()]
            for task in waiting:
                task.cancel()
        finally:
            for _, call in calls:
                pace.remove(call)
                call.close()
            pace.stop()
            signalling.close()
    for one, _ in moved:
        heard = [t for t in turns if t.call == one.record.call and t.complete]
        before = [t for t in heard if t.at < killed]
        after = [t for t in heard if t.at > since]
        assert before
        assert len(after) >= 2
        for turn in (*before, *after):
            assert turn.voice == turn.words
    record_property("re-INVITE after ms", [one.record.moved_ms for one, _ in moved])
    record_property(
        "agent after ms", [t.result() for t in waiting if t.done() and not t.cancelled()]
    )


Speak = Callable[[float], None]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """Sets the tone that the agents' words are from now on."""
    from benchmarks.servers import scripted

    def set_tone(hz: float) -> None:
        t = np.arange(RATE_OUT // 2) / RATE_OUT
        tone = (8000 * np.sin(2 * np.pi * hz * t)).astype(np.int16)
        monkeypatch.setattr(scripted, "word_sound", lambda: tone)

    set_tone(OUR_TONE)
    return set_tone


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[tuple[list[ResumableEdge], Kamailio]]:
    with redis_server(folder) as url:
        async with AsyncExitStack() as stack:
            edges = await stack.enter_async_context(pair(url, folder))
            ports = [port_of(edge.sip) for edge in edges]
            yield edges, await stack.enter_async_context(kamailio(ports, **QUICK))


async def dead(edges: list[ResumableEdge], speak: Speak) -> ResumableEdge:
    """The edge that has the call dies; returns the other, once its agent has spoken."""
    await until(lambda: any(edge.conversations for edge in edges))
    had, other = sorted(edges, key=lambda edge: not edge.conversations)
    await saved(had)
    await dies(had)
    speak(OTHER_TONE)
    await until(other.turns)
    return other


async def test_all_calls_of_a_dead_edge_go_on(tmp_path: Path, speak: Speak) -> None:
    """More than are claimed at once."""
    assert MANY > MAX_RECOVERING
    async with site(tmp_path) as ((first, second), _):
        signalling, pace = Signalling(), Pace()
        calls: list[tuple[Caller, PhoneCall]] = []
        try:
            for number in range(MANY):
                one = caller(number, [])
                call = PhoneCall(one, Way(), Random(number), signalling)
                assert await call.connect_to((HOST, port_of(first.sip)))
                pace.add(call)  # it waits for the greeting to end, and says nothing
                calls.append((one, call))
            assert first.recovery is not None
            await until(lambda: len(first.recovery._table.calls(SavedCallState.HELD)) == MANY)
            await until(lambda: not first.recovery._waiting)
            await dies(first)
            await until(lambda: all(one.record.moved_ms is not None for one, _ in calls))
            await until(lambda: len(second.conversations) == MANY)
            assert not any(call.closed for _, call in calls)
        finally:
            for _, call in calls:
                pace.remove(call)
                call.close()
            pace.stop()
            await until(lambda: not second.conversations)
            signalling.close()


@needs_baresip
async def test_baresip_hears_the_agent_again(tmp_path: Path, speak: Speak) -> None:
    async with site(tmp_path) as (edges, proxy):
        phone = Baresip(tmp_path / "phone", account=";answermode=auto")
        async with phone.running():
            await phone.dial(f"sip:agent@127.0.0.1:{proxy.port}")
            other = await dead(edges, speak)
            assert other.call.leg.statistics().packets_received > 25
            await phone.hang_up()
    pcm, rate = phone.heard(), 8000
    seconds = [pcm[i : i + rate] for i in range(0, len(pcm) - rate, rate // 4)]
    assert any(is_tone(part, rate, OUR_TONE) for part in seconds)
    assert any(is_tone(part, rate, OTHER_TONE) for part in seconds)


@pytest.mark.parametrize("transport", ["UDP", "TCP"])
async def test_a_phone_with_srtp_hears_the_agent_again(
    tmp_path: Path, speak: Speak, transport: Literal["UDP", "TCP"]
) -> None:
    async with site(tmp_path) as (edges, proxy):
        server = f"{HOST}:{proxy.port}"
        trunk = Trunk(
            "proxy", (HOST,), server=server, srtp="required", transport=transport, options_seconds=0
        )
        async with endpoint(ToneHost(THEIR_TONE), trunks=(trunk,)) as (sip, host):
            make_leg = sip.hooks.new_leg

            def without_dtls(*arguments: Any) -> SipLeg:
                leg = make_leg(*arguments)
                leg._settings = replace(leg._settings, dtls=False)
                return leg

            sip.hooks.new_leg = without_dtls
            call = sip.dial(Dial("agent"))
            talk = await host.talk()
            other = await dead(edges, speak)
            await until(lambda: talk.hears(OTHER_TONE))
            leg, phone = other.call.leg, call.leg
            assert isinstance(leg, SipLeg)
            assert isinstance(phone, SipLeg)
            assert leg.srtp == phone.srtp == "SDES AES_CM_128_HMAC_SHA1_80"
            assert leg.statistics().packets_received > 25
            assert leg.srtp_failures == 0
            await call.hang_up("done")
            await until(other.ends)


def port_of(sip: SipEndpoint | None) -> int:
    assert sip is not None
    return sip.bound[0][2]
