"""The benchmarks measure what they say."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from benchmarks.callers import browsers as load
from benchmarks.calls import edge
from benchmarks.media import echo, media
from benchmarks.processes import process
from benchmarks.servers.scripted import ScriptedSynthesizerStream, word_sound
from benchmarks.speech.lines import encode, opus
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.pcm import RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp import RtpPacket


def agent(pcm: Pcm) -> list[RtpPacket]:
    payloads = encode(pcm, opus())
    return [RtpPacket(111, 65_530 + i & 0xFFFF, i * 960, 1, p) for i, p in enumerate(payloads)]


def reply(words: int = 5) -> Pcm:
    return np.tile(word_sound(), words)


def heard(packets: list[RtpPacket], late: dict[int, float] | None = None) -> load.CallCounters:
    counts = load.CallCounters()
    sound = load.AgentSound(counts)
    for i, packet in enumerate(packets):
        sound.receive(packet, 10 + packet.timestamp / 48_000 + (late or {}).get(i, 0.0))
    sound.end_reply()
    return counts


def test_whole_speech_has_no_holes() -> None:
    counts = heard(agent(reply()))
    assert (counts.holes, counts.missing) == (0, 0)
    assert counts.speech_packets == counts.packets == 75
    assert max(counts.late_ms) < 0.01


def test_silence_sent_within_a_word_is_a_hole() -> None:
    pcm = reply().copy()
    pcm[10_000 : 10_000 + RATE_OUT * 20 // 1000] = 0
    assert heard(agent(pcm)).holes == 1


def test_a_packet_that_never_came_is_a_hole() -> None:
    packets = agent(reply())
    del packets[20]
    counts = heard(packets)
    assert (counts.holes, counts.missing) == (1, 1)


def test_the_pause_between_replies_is_none() -> None:
    silence = np.zeros(RATE_OUT, np.int16)
    counts = heard(agent(np.concatenate((reply(), silence, reply()))))
    assert counts.holes == 0
    assert counts.packets > counts.speech_packets


def test_lateness_is_against_the_timestamp() -> None:
    counts = heard(agent(reply()), late={30: 0.025})
    assert sorted(counts.late_ms)[-2:] == pytest.approx([0, 25], abs=0.01)
    assert counts.early == 0


def test_what_was_sent_ahead_makes_the_others_no_later() -> None:
    counts = heard(agent(reply()), late={30: -0.04, 31: -0.02})
    assert max(counts.late_ms) < 0.01
    assert counts.early == 2


async def test_the_scripted_voice_gives_its_text_back() -> None:
    stream = ScriptedSynthesizerStream()
    stream.write("one ")
    stream.write("two")
    stream.end()
    said = [speech async for speech in stream]
    assert "".join(s.text for s in said).split() == ["one", "two"]
    assert sum(len(s.pcm) for s in said) == 2 * len(word_sound())


def test_the_chirp_is_heard_in_its_own_packet() -> None:
    sound = np.zeros(10 * SAMPLES_OUT, np.int16)
    sound[4 * SAMPLES_OUT : 5 * SAMPLES_OUT] = echo.chirp(RATE_OUT)
    decoder = OpusDecoder()
    peaks = [int(np.abs(decoder.decode(p)).max()) for p in encode(sound, opus())]
    assert next(i for i, peak in enumerate(peaks) if peak > echo.LOUD) == 4


def test_every_step_costs_something() -> None:
    speech = np.tile(word_sound(), 10)
    found = [*media.inbound(encode(speech, opus())), *media.outbound(speech)]
    assert all(step.p99_us > 0 for step in found)
    assert {"RTP parse", "pull + decode"} < {step.name for step in found}


@pytest.mark.parametrize("limit", [0, 3, 37, 200, 256, 300])
async def test_the_search_finds_what_a_server_holds(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    tried = []

    async def measure(server: edge.Kind, manner: load.Manner, calls: int, s: float) -> edge.Row:
        tried.append(calls)
        row: dict[str, Any] = dict.fromkeys((f.name for f in fields(edge.Row)), 0)
        holes = 0 if calls <= limit else 100
        row |= {"server": server, "manner": manner, "late_ms": {}, "lag_ms": {}}
        row |= {"calls": calls, "connected": calls, "holes_per_minute": holes, "answered": 1}
        return edge.Row(**row)

    monkeypatch.setattr(edge, "measure", measure)
    known = [await measure("edge", "talking", n, 1) for n in (1, 10)]
    found = await edge.capacity("edge", known, 1, lambda row: None)
    best = min(limit, edge.MOST_CALLS)
    assert found.calls <= best
    assert best - found.calls <= max(1, best // 16)
    assert len(tried) < 15


async def test_a_server_that_gives_way_is_a_failed_row_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def gives_way(module: str, *arguments: str) -> AsyncIterator[process.Child]:
        raise process.ChildError("no word from a child:\nout of memory")
        yield

    monkeypatch.setattr(edge, "child", gives_way)
    row = await edge.measure("stock", "talking", 50, 1.0)
    assert row == edge.Failed("stock", "talking", 50, "out of memory")
    assert edge.line(row).split() == ["stock", "talking", "50", "failed:", "out", "of", "memory"]
    found = await edge.capacity("stock", [row], 1.0, lambda row: None)
    assert (found.calls, found.cpu_percent) == (0, 0.0)


def test_the_cpu_of_a_thread_is_told_by_its_name() -> None:
    with ThreadPoolExecutor(2, "busy-bee") as pool:
        list(pool.map(lambda n: sum(range(n)), [3_000_000] * 2))
        assert process.thread_cpu_s()["busy-bee"] > 0.01


@pytest.mark.parametrize("options", [(), pytest.param(("--one-port",), marks=pytest.mark.slow)])
async def test_the_echo_of_a_real_edge(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echo, "WARM_UP_S", 0.0)
    async with process.child("benchmarks.servers.edge_server", "echo", *options) as server:
        held = process.Footprint.of(server.pid)
        url = f"http://127.0.0.1:{server.hello['port']}"
        round_trips = await echo.at_the_packets(url, 2.0)
    assert server.process.returncode == 0
    assert held.rss_mb > 20
    assert held.threads > 0
    assert round_trips
    # Nothing can be back sooner than the echo's own tick, and nothing good takes half a second.
    assert 5 < min(round_trips) < 500
