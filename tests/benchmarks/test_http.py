"""The benchmark of the speech API counts what it says, on servers that are slow, full or broken."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import numpy as np
import pytest

from benchmarks.speech import http_live
from benchmarks.speech import http_requests as http
from benchmarks.speech.http_live import live_run, transcribe_file
from benchmarks.speech.http_load import LoadInputs, Requests, long_recording, sweep
from offhook.media.pcm import RATE_IN
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.http.audio_encoder import FORMATS
from tests.support.waiting import until
from tests.web.speech_api.conftest import WORD_S, Quick, quickly_served

RECORDINGS = [np.full(RATE_IN // 2, level, np.int16) for level in (500, 900)]
KNOWN = LoadInputs(["one two three", "four five"], RECORDINGS)


@pytest.fixture
async def quick() -> AsyncIterator[Quick]:
    async with quickly_served() as quick:
        yield quick


async def test_first_byte_whole_answer_and_sound_are_what_they_are(quick: Quick) -> None:
    quick.voice.slow_s = 0.1
    tally = await sweep(Requests(quick.client, KNOWN).speech, 1, 0.05)
    [answer] = tally.answers
    assert 0 < answer.first < answer.total
    assert answer.audio == 3 * WORD_S
    row = tally.row()
    assert row["requests"] == 1
    assert row["first_p50_ms"] == 1000 * answer.first
    assert row["rtf_p50"] == answer.total / (3 * WORD_S)
    assert row["a_second"] == 1 / tally.seconds
    assert row["audio_s_a_s"] == 3 * WORD_S / tally.seconds
    assert (row["turned_away"], row["errors"]) == (0, 0)


async def test_every_kind_of_request_is_answered(quick: Quick) -> None:
    quick.ears.slow_s = 0.05
    requests = Requests(quick.client, KNOWN)
    for ask in (
        requests.speech,
        requests.transcription,
        requests.speech_socket,
        requests.transcription_socket,
    ):
        tally = await sweep(ask, 3, 0.1)
        assert len(tally.answers) >= 3, tally.said
        assert not tally.errors, tally.said
        assert all(0 < a.first <= a.total for a in tally.answers)
        assert {a.audio for a in tally.answers} <= {0.5, 2 * WORD_S, 3 * WORD_S}
    await until(lambda: quick.ears.open_streams == 0)


async def test_those_turned_away_are_counted_and_wait_as_they_are_told() -> None:
    async with quickly_served(Settings(speeches=1, queue=0, streams=1)) as quick:
        quick.voice.slow_s = 0.1
        requests = Requests(quick.client, KNOWN)
        tally = await sweep(requests.speech, 4, 0.3)
        assert tally.turned_away == 3  # Retry-After is a second at least
        assert len(tally.answers) >= 1
        assert not tally.errors
        tally = await sweep(requests.speech_socket, 3, 0.3)
        assert tally.turned_away >= 2
        assert not tally.errors


async def test_errors_are_counted_by_what_they_were(quick: Quick) -> None:
    quick.voice.fails_after = 0
    tally = await sweep(Requests(quick.client, KNOWN).speech_socket, 2, 0.5)
    assert (tally.errors, tally.said) == (2, {"the speech engine failed: try again later": 2})
    quick.ears.fails_within = "the ears broke"
    tally = await sweep(Requests(quick.client, KNOWN).transcription, 1, 0.05)
    assert tally.errors == 1
    assert not tally.answers


async def test_what_people_who_talk_wait_for_is_measured_from_the_flush(quick: Quick) -> None:
    quick.ears.slow_s = 0.2
    loop = asyncio.get_running_loop()
    over_at = loop.time() + 1.5
    live = await live_run(quick.client, 3, RECORDINGS, lambda: loop.time() > over_at)
    assert not live.errors, live.said
    assert len(live.finals_ms) >= 3
    assert all(ms > 0 for ms in live.finals_ms)
    fed = [stream.samples for stream in quick.ears.opened]
    # In real time: nobody said more than there was time for.
    assert all(0 < samples <= 2.5 * RATE_IN for samples in fed)
    await until(lambda: quick.ears.open_streams == 0)


async def test_a_server_that_answers_no_more_is_no_hang(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_live, "FINALS_S", 0.3)
    monkeypatch.setattr(http_live, "STAGGER_S", 0.0)
    quick.ears.slow_s = 60
    live = await live_run(quick.client, 1, RECORDINGS, lambda: True)
    assert not live.finals_ms
    loop = asyncio.get_running_loop()
    over_at = loop.time() + 0.2
    live = await live_run(quick.client, 1, RECORDINGS, lambda: loop.time() > over_at)
    assert live.said == {"1 finals missing after 0.3 s": 1}


def test_a_long_recording_is_as_long_as_asked() -> None:
    sound = long_recording(RECORDINGS, 3.3)
    assert len(sound) == round(3.3 * RATE_IN)
    assert sound[0] == 500
    assert not sound[RATE_IN // 2 : RATE_IN].any()
    assert sound[RATE_IN] == 900


async def test_a_file_is_timed(quick: Quick) -> None:
    assert await transcribe_file(quick.client, RECORDINGS[0]) > 0
    assert [stream.samples for stream in quick.ears.opened] == [len(RECORDINGS[0])]


async def test_the_command_prints_a_row_a_point_and_live_beside_a_file(
    quick: Quick, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "recorded", lambda: list(RECORDINGS))
    monkeypatch.setattr(http_live, "STAGGER_S", 0.1)
    quick.ears.slow_s = 0.05

    async def rows(*options: str) -> list[dict[str, object]]:
        given = ["--url", quick.url, "--json", *options]
        assert await asyncio.to_thread(http.main, given) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    swept = await rows("--clients", "1,2", "--seconds", "0.2", "--parts", "speech,speech-socket")
    assert [(row["part"], row["clients"]) for row in swept] == [
        *(("speech", 1), ("speech", 2)),
        *(("speech-socket", 1), ("speech-socket", 2)),
    ]
    assert all(row["requests"] and not row["errors"] for row in swept)
    assert all(row["cpu_ms"] is None and row["rss_mb"] is None for row in swept)  # tells no cost
    formats = {row["format"]: row for row in await rows("--parts", "formats")}
    assert set(formats) == set(FORMATS)
    assert formats["pcm"]["kbit_s"] == 384
    assert formats["wav"]["of_wav"] == 1
    assert 0 < formats["opus"]["kbytes"] < formats["flac"]["kbytes"] < formats["wav"]["kbytes"]
    alone, beside = await rows("--live", "2", "--seconds", "1", "--file", "2")
    assert (alone["streams"], alone["beside"], beside["beside"]) == (2, "nothing", "a file")
    assert alone["finals"]
    assert beside["file_s"]


async def test_where_nobody_is_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no server there"):
        await asyncio.to_thread(
            http.main, ["--url", "http://127.0.0.1:9", "--parts", "speech", "--spoken"]
        )


@pytest.mark.slow
async def test_it_starts_a_server_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--parts", "speech", "--clients", "2", "--seconds", "1", "--spoken", "--json"]
    assert await asyncio.to_thread(http.main, options) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["requests"] > 2
    assert 0 < row["cpu_ms"] < 1000
    assert 30 < row["rss_mb"] < 1000
    assert not row["errors"]


async def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="offhook speech is not there"):
        async with http.own_server(None):
            raise AssertionError
