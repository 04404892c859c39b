"""Two servers with one Redis: a phone's call goes on at the other one, in the same dialog."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from redis import Redis

from benchmarks.callers.rtp import RtpSocket
from benchmarks.processes.own_server import HOST
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.end_reason import End
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.telephony.sip.messages import sdp
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.recovered_calls_io import saved_dialog
from offhook.telephony.sip.sessions.saved_dialog import CSEQ_GAP
from offhook.web.config.config import Config
from offhook.web.edge.resume import recovery_store_io, saved_phone_call
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.scripted_peer import Peer, udp_peer
from tests.web.edge.resume.test_resume import ResumableEdge

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("loopback", "quick")]

LEASE_S = 1.0
RESUMED = SENTENCES["en"][Occasion.RESUMED]
CRYPTO = "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:" + "QUJD" * 10


class Phone:
    """A scripted phone with a socket for sound."""

    def __init__(self, peer: Peer) -> None:
        from random import Random

        self.peer = peer
        self.audio = RtpSocket(Random(1), HOST)

    def offer(self, *lines: str) -> str:
        profile = "RTP/SAVP" if lines else "RTP/AVP"
        text = (
            "v=0",
            f"o=- 17 1 IN IP4 {HOST}",
            "s=-",
            f"c=IN IP4 {HOST}",
            "t=0 0",
            f"m=audio {self.audio.port} {profile} 0 97",
            "a=rtpmap:97 telephone-event/8000",
            "a=rtcp-mux",
            *lines,
        )
        return "".join(f"{line}\r\n" for line in text)

    async def call(self, *lines: str) -> sdp.Description:
        return sdp.parse(await self.peer.call(self.offer(*lines)))

    async def moved(self, *lines: str) -> tuple[Request, sdp.Description]:
        """Waits for the re-INVITE and accepts it."""
        async with asyncio.timeout(HANGS_S):
            while "INVITE" not in self.peer.came:
                await asyncio.sleep(0.01)
        reinvite = await self.peer.asked("INVITE")
        offered = sdp.parse(sdp_of(reinvite) or "")
        self.connect(offered)
        self.peer.learn(reinvite)
        self.peer.reply(reinvite, 200, sdp=self.offer(*lines))
        await self.peer.asked("ACK")
        return reinvite, offered

    def connect(self, theirs: sdp.Description) -> None:
        (media,) = theirs.resolved()
        assert media.connection is not None
        self.audio.connect((media.connection, media.port))

    async def speaks_to_us(self) -> None:
        """Waits for sound that is no silence, from where the last description says."""
        decoder = PcmuDecoder()
        async with asyncio.timeout(HANGS_S):
            while True:
                self.audio.send(self.audio.packet(b"\xff" * 160))
                for _, _, payload, _ in self.audio.receive():
                    if np.abs(decoder.decode(payload)).max() > 1000:
                        return
                await asyncio.sleep(0.02)

    async def press(self, key: str) -> None:
        body = "application/dtmf-relay", f"Signal={key}\r\nDuration=160\r\n"
        self.peer.ask("INFO", body=body)
        await self.peer.response(200, "INFO")


def keys(edge: ResumableEdge) -> str:
    return "".join(getattr(e, "digit", "") or getattr(e, "key", "") for e in edge.events)


@asynccontextmanager
async def pair(
    url: str, folder: Path, tables: dict[str, Any] | None = None, **sip: Any
) -> AsyncIterator[list[ResumableEdge]]:
    """`tables` are further ones of the configuration, and the rest keys of [sip]."""
    edges = []
    async with AsyncExitStack() as stack:
        for name in "ab":
            port = free_port()
            phones = {
                "udp": port,
                "tcp": False,
                "trunks": [{"name": "pbx", "addresses": [HOST]}],
                "recovery_seconds": LEASE_S,
                **sip,
            }
            table = {
                "server": {"port": 0, "drain_seconds": 0.1, "redis": url},
                "webrtc": {"addresses": [HOST]},
                "log": {"calls": folder / name},
                "sip": phones,
                **(tables or {}),
            }
            edges.append(ResumableEdge(Config.model_validate(table)))
            await edges[-1].start()
            stack.push_async_callback(edges[-1].close)
        for edge in edges:  # each has held its lease long enough to claim calls
            assert edge.recovery is not None
            lease = edge.recovery._lease
            try:
                await until(lambda of=lease: of.may_claim(monotonic()))
            except TimeoutError:
                pytest.fail(f"no lease: {vars(lease)}, {vars(edge.recovery)}")
        yield edges


@asynccontextmanager
async def calling(edge: ResumableEdge) -> AsyncIterator[Phone]:
    assert edge.sip is not None
    async with udp_peer(edge.sip) as peer:
        phone = Phone(peer)
        try:
            yield phone
        finally:
            phone.audio.close()


async def saved(edge: ResumableEdge) -> None:
    """Waits until the calls of an edge are saved."""
    assert edge.recovery is not None
    assert edge.resumption is not None
    await until(edge.turns)
    recovery = edge.recovery
    await until(lambda: recovery._calls and not recovery._waiting)
    assert all(saved_dialog(call.sip) is not None for call in recovery._calls.values())
    assert await edge.resumption._store.flush(HANGS_S)


async def dies(edge: ResumableEdge) -> None:
    """As if by kill -9: nothing is sent any more, to nobody."""
    assert edge.recovery is not None
    assert edge.sip is not None
    edge.recovery._running.cancel()
    for task in edge.queues._tasks:
        task.cancel()
    edge.sip.stack.transports.send = lambda data, flow: None  # type: ignore[method-assign]
    for call in edge.sip.calls.values():
        call.leg._transport.sockets.close()


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_a_phone_whose_server_dies_goes_on_at_another(redis_url: str, tmp_path: Path) -> None:
    async with pair(redis_url, tmp_path) as (first, second), calling(first) as phone:
        before = await phone.call()
        phone.connect(before)
        await phone.speaks_to_us()
        await saved(first)
        spoken = first.call.transcript()
        await dies(first)
        reinvite, after = await phone.moved()
        await phone.speaks_to_us()
        await until(lambda: second.turns() == [RESUMED])
        assert second.call.transcript()[: len(spoken)] == spoken
        await phone.press("5")
        await until(lambda: "5" in keys(second))

        # The same dialog, the same session, but another address.
        assert reinvite.cseq.number == CSEQ_GAP + 1
        assert before.origin is not None
        assert after.origin is not None
        assert after.origin.session_id == before.origin.session_id
        assert after.origin.version == before.origin.version + 1
        assert after.media[0].port != before.media[0].port
        assert after.media[0].formats[0] == "0"
        assert second.sip is not None
        assert reinvite.contacts[0].uri.port == second.sip.bound[0][2]
        await phone.peer.hang_up()
        await until(lambda: records(tmp_path, "b"))
        (record,) = records(tmp_path, "b")
        assert record["remote_call_id"] == phone.peer.call_id
        assert record["duration_seconds"] >= LEASE_S  # with the time at the first server
        metric = second.metrics.registry.get_sample_value
        assert metric("offhook_phone_calls_recovered_total", {"outcome": "recovered"}) == 1


async def test_a_phone_moves_when_its_server_drains(redis_url: str, tmp_path: Path) -> None:
    async with pair(redis_url, tmp_path) as (first, second), calling(first) as phone:
        phone.connect(await phone.call(CRYPTO))
        await saved(first)
        raw = Redis.from_url(redis_url)
        (name,) = (key for key in raw.keys(recovery_store_io.CALLS + "*"))
        (state,) = raw.hvals(name)
        assert b"inline" not in state  # no key lies in Redis
        assert b"AES_CM_128_HMAC_SHA1_80" in state
        draining = asyncio.create_task(first.drain())
        reinvite, after = await phone.moved(CRYPTO)
        await until(lambda: RESUMED in second.turns())
        await asyncio.wait_for(draining, HANGS_S)
        assert first.ends() == [str(End.CONTINUED_ELSEWHERE)]
        assert "BYE" not in phone.peer.came
        assert not records(tmp_path, "a")
        assert after.media[0].profile == "RTP/SAVP"
        key = after.media[0].attribute("crypto")
        assert key is not None
        assert key.startswith("1 AES_CM_128_HMAC_SHA1_80 inline:")
        assert reinvite.call_id == phone.peer.call_id
        await phone.peer.hang_up()
        await until(lambda: records(tmp_path, "b"))
        assert not raw.hvals(name)
        raw.close()


async def test_a_refused_call_and_a_forged_one_are_dropped(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(redis_url, tmp_path) as (first, second), calling(first) as phone:
        await phone.call()
        await saved(first)
        raw = Redis.from_url(redis_url)
        assert first.recovery is not None
        mine = recovery_store_io.CALLS + first.recovery.name
        raw.flushall()  # Redis forgets, and is told again
        await until(lambda: raw.hgetall(mine))
        ((_, state),) = raw.hgetall(mine).items()
        count = 3
        raw.hset(mine, "garbage", b"0|\xff\xfe{")
        raw.hset(mine, "forged", state.replace(b'"pbx"', b'"no trunk"'))
        raw.hset(mine, "elsewhere", state.replace(b"127.0.0.1", b"192.0.2.7"))
        raw.hset(mine, "old", b"9|" + state[2:])
        raw.set(recovery_store_io.CALLS + "another type", b"x")
        raw.zadd(recovery_store_io.LEASES, {"another type": 1})
        await dies(first)
        async with asyncio.timeout(HANGS_S):
            while "INVITE" not in phone.peer.came:
                await asyncio.sleep(0.01)
        reinvite = await phone.peer.asked("INVITE")
        phone.peer.reply(reinvite, 481)
        await until(lambda: len(records(tmp_path, "b")) == 2)
        reasons = [record["end_reason"] for record in records(tmp_path, "b")]
        lost = "the connection is lost: another server could not continue the call"
        assert all(reason.startswith(lost) for reason in reasons)
        assert any("481" in reason for reason in reasons)
        assert any("192.0.2.7 is no address of the trunk 'pbx'" in reason for reason in reasons)
        metric = second.metrics.registry.get_sample_value
        name = "offhook_phone_calls_recovered_total"
        await until(lambda: metric(name, {"outcome": "refused"}) == count)
        assert metric(name, {"outcome": "lost"}) == 2
        assert second.recovery is not None
        await until(lambda: not raw.hgetall(recovery_store_io.CALLS + second.recovery.name))
        assert caplog.text.count("cannot be continued") == count
        raw.close()


async def test_of_a_call_that_grows_too_large_no_older_state_stays(
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair(redis_url, tmp_path) as (first, _), calling(first) as phone:
        await phone.call()
        await saved(first)
        assert first.recovery is not None
        assert first.sip is not None
        (sip,) = first.sip.calls.values()
        raw = Redis.from_url(redis_url)
        mine = recovery_store_io.CALLS + first.recovery.name
        assert raw.hlen(mine) == 1
        with monkeypatch.context() as limits:
            limits.setattr(saved_phone_call, "MAX_PHONE_CALL_BYTES", 100)
            first.recovery._media_changed(sip)
            waiting = first.recovery._waiting
            await until(lambda: raw.hlen(mine) == 0 and not waiting)
            first.recovery._media_changed(sip)
            assert not first.recovery._waiting
        assert caplog.text.count("it is not saved") == 1
        first.recovery._media_changed(sip)
        await until(lambda: raw.hlen(mine) == 1)
        raw.close()
        await phone.peer.hang_up()


async def test_a_server_that_was_only_silent_leaves_its_calls(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(redis_url, tmp_path) as (first, second), calling(first) as phone:
        phone.connect(await phone.call())
        await saved(first)
        assert first.recovery is not None
        renew = first.recovery._store.renew
        asleep = asyncio.Event()

        async def hang(*arguments: Any) -> Any:
            await asleep.wait()
            return await renew(*arguments)

        monkeypatch.setattr(first.recovery._store, "renew", hang)
        await phone.moved()
        await until(lambda: second.turns() == [RESUMED])
        asleep.set()
        await until(first.ends)
        assert first.ends() == [str(End.CONTINUED_ELSEWHERE)]
        await phone.press("7")
        await until(lambda: "7" in keys(second))
        assert "BYE" not in phone.peer.came
        await phone.peer.hang_up()


async def test_a_claim_whose_reply_was_lost_is_carried_out(redis_url: str, tmp_path: Path) -> None:
    async with pair(redis_url, tmp_path) as (first, second), calling(first) as phone:
        await phone.call()
        await saved(first)
        raw = Redis.from_url(redis_url)
        assert first.recovery is not None
        assert second.recovery is not None
        mine, theirs = first.recovery.name, second.recovery.name
        ((call, state),) = raw.hgetall(recovery_store_io.CALLS + mine).items()
        raw.sadd(recovery_store_io.CLAIMED + mine, call)
        raw.hdel(recovery_store_io.CALLS + mine, call)
        raw.hset(recovery_store_io.CALLS + theirs, call, state)
        raw.close()
        await phone.moved()
        await until(lambda: second.turns() == [RESUMED])
        assert first.ends() == [str(End.CONTINUED_ELSEWHERE)]
        await phone.peer.hang_up()
