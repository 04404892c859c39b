"""A recogniser behind OpenAI's API: whatever the server does, the words are whole and a call goes
on."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai import realtime_io as openai_realtime_io
from offhook.pipeline.speech.openai import recognizer_io as openai_recognizer_io
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Word
from offhook.pipeline.speech.streams import utterance_queue, utterance_stream_io
from offhook.pipeline.speech.streams.utterance_queue import MAX_UTTERANCE_S
from offhook.pipeline.speech.streams.utterance_stream_io import UtteranceStream
from tests.pipeline.speech.openai.openai_server import (
    OpenAiStub,
    cut_after,
    endless,
    openai_stub,
    saying,
    says,
    stands_still,
    status,
)
from tests.support.waiting import HANGS_S, until

FILE = StreamOptions(live=False)


@asynccontextmanager
async def hearing(
    stub: OpenAiStub, options: StreamOptions = FILE, **how: Any
) -> AsyncIterator[UtteranceStream]:
    recognizer = OpenAiRecognizer(stub.url, **how)
    stream = await recognizer.open(options)
    yield stream
    await stream.close()
    await recognizer.close()


async def final_of(stream: UtteranceStream, told: list[Partial] | None = None) -> Final:
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            if isinstance(event, Final):
                return event
            if told is not None:
                told.append(event)
    raise AssertionError("the stream has ended")


# --- by requests ---


async def test_an_utterance_is_heard_whole() -> None:
    async with openai_stub() as stub, hearing(stub) as stream:
        for number in (1, 2, 3):
            stream.feed(saying(number))
        stream.finish()
        assert await final_of(stream) == Final("1 2 3", 300, language="und")
    (asked,) = stub.of("hear")
    assert asked.fields == {"model": "stub", "response_format": "json"}


async def test_utterances_come_in_order_also_those_without_sound() -> None:
    async with openai_stub() as stub, hearing(stub) as stream:
        stream.feed(saying(1))
        stream.finish()
        stream.finish()
        stream.feed(saying(2, 0, 3))
        stream.finish()
        finals = [await final_of(stream) for _ in range(3)]
    assert [(final.text, final.audio_ms) for final in finals] == [("1", 100), ("", 0), ("2 3", 300)]


async def test_words_have_their_times_in_the_stream() -> None:
    options = StreamOptions(words=True, live=False)
    async with openai_stub() as stub, hearing(stub, options) as stream:
        stream.feed(saying(1, 2))
        stream.finish()
        await final_of(stream)
        stream.feed(saying(0, 3))
        stream.finish()
        final = await final_of(stream)
    assert final == Final("3", 200, (Word("3", 300, 400),), "en")
    assert stub.of("hear")[0].fields["timestamp_granularities[]"] == "word"


async def test_a_server_that_has_no_times_of_words_is_asked_for_them_once() -> None:
    options = StreamOptions(words=True, live=False)
    async with openai_stub(has_words=False) as stub, hearing(stub, options) as stream:
        for number in (1, 2):
            stream.feed(saying(number))
            stream.finish()
            assert await final_of(stream) == Final(str(number), 100, language="und")
    asked = [asked.fields["response_format"] for asked in stub.of("hear")]
    assert asked == ["verbose_json", "json", "json"]


async def test_language_context_key_and_model_reach_the_server() -> None:
    options = StreamOptions(language="de", context="Müller, Schmidt", live=False)
    async with (
        openai_stub(key="sesame", models=["one", "two"]) as stub,
        hearing(stub, options, api_key="sesame", model="two") as stream,
    ):
        stream.feed(saying(1))
        stream.finish()
        assert (await final_of(stream)).language == "de"
        (asked,) = stub.of("hear")
    assert asked.fields["language"] == "de"
    assert asked.fields["prompt"] == "Müller, Schmidt"
    assert asked.fields["model"] == "two"


async def test_a_live_stream_is_told_what_is_heard_so_far() -> None:
    told: list[Partial] = []
    options = StreamOptions(update_ms=200)
    async with openai_stub() as stub, hearing(stub, options) as stream:
        for number in range(1, 9):
            stream.feed(saying(number))
            await asyncio.sleep(0.02)
        await until(lambda: any("8" in asked.heard for asked in stub.of("hear")))
        stream.finish()
        final = await final_of(stream, told)
    assert final.text == "1 2 3 4 5 6 7 8"
    assert told
    for partial in told:
        assert final.text.startswith(partial.text)
        assert partial.audio_ms == 100 * len(partial.text.split())
    assert told[-1].stable_chars > 0


async def test_a_slow_server_is_asked_less_often_and_never_twice_at_a_time() -> None:
    options = StreamOptions(update_ms=80)
    async with openai_stub(slow_s=0.3) as stub, hearing(stub, options) as stream:
        stream._recognizer._realtime = False
        for number in range(1, 11):
            stream.feed(saying(number))
            await asyncio.sleep(0.1)
        stream.finish()
        final = await final_of(stream)
    assert final.text == "1 2 3 4 5 6 7 8 9 10"
    assert stub.most == 1
    assert 2 <= len(stub.of("hear")) <= 6
    # Each with the newest sound there was.
    assert len(stub.of("hear")[1].heard) >= 3


async def test_the_final_does_not_wait_for_a_partial() -> None:
    options = StreamOptions(update_ms=80)
    async with openai_stub() as stub, hearing(stub, options) as stream:
        stub.faults.append(stands_still())
        stream._recognizer._realtime = False
        stream.feed(saying(1, 2))
        await until(lambda: stub.now)
        stream.finish()
        assert (await final_of(stream)).text == "1 2"


async def test_what_is_cancelled_has_no_final_and_its_request_ends() -> None:
    async with openai_stub() as stub, hearing(stub) as stream:
        stub.faults.append(stands_still())
        stream.feed(saying(1))
        stream.finish()
        await until(lambda: stub.now)
        stream.cancel()
        await until(lambda: not stub.now)
        stream.feed(saying(2))
        stream.finish()
        assert (await final_of(stream)).text == "2"


@pytest.mark.parametrize("told", [False, True])
async def test_what_is_taken_back_is_heard_with_what_follows(told: bool) -> None:
    async with openai_stub() as stub, hearing(stub) as stream:
        assert stream.whole_turns
        if not told:
            stub.faults.append(stands_still())
        stream.feed(saying(1))
        stream.finish()
        if told:
            assert (await final_of(stream)).text == "1"
        else:
            await until(lambda: stub.now)
        assert stream.drop_finished() == (0 if told else 1)
        await until(lambda: not stub.now)
        stream.feed(saying(1))
        stream.feed(saying(2))
        stream.finish()
        assert (await final_of(stream)).text == "1 2"


async def test_a_server_is_asked_for_no_partials_if_none_are_wanted() -> None:
    options = StreamOptions(update_ms=80)
    async with openai_stub() as stub, hearing(stub, options, partials=False) as stream:
        stream._recognizer._realtime = False
        for number in range(1, 9):
            stream.feed(saying(number))
            await asyncio.sleep(0.02)
        stream.finish()
        told: list[Partial] = []
        assert (await final_of(stream, told)).text == "1 2 3 4 5 6 7 8"
        assert (told, len(stub.of("hear"))) == ([], 1)


async def test_closing_ends_the_iteration_and_the_request() -> None:
    async with openai_stub() as stub:
        stub.faults.append(stands_still())
        async with hearing(stub) as stream:
            stream.feed(saying(1))
            stream.finish()
            await until(lambda: stub.now)
            reading = asyncio.create_task(final_of(stream))
            await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="has ended"):
            await reading
        await until(lambda: not stub.now)


async def test_a_long_utterance_comes_in_pieces_cut_where_it_is_quiet() -> None:
    numbers = [100 + n % 100 for n in range(10 * MAX_UTTERANCE_S + 80)]
    numbers[10 * MAX_UTTERANCE_S - 20] = 0
    async with openai_stub() as stub, hearing(stub) as stream:
        stream.feed(saying(*numbers))
        stream.finish()
        first, last = await final_of(stream), await final_of(stream)
    assert (first.continues, last.continues) == (True, False)
    assert first.audio_ms + last.audio_ms == 100 * len(numbers)
    assert first.audio_ms == pytest.approx(1000 * MAX_UTTERANCE_S - 2000, abs=100)
    assert len(first.text.split()) + len(last.text.split()) == pytest.approx(len(numbers), abs=2)


async def test_streams_share_the_requests_that_are_allowed() -> None:
    async with openai_stub(slow_s=0.05) as stub:
        recognizer = OpenAiRecognizer(stub.url, max_requests=2)
        streams = [await recognizer.open(FILE) for _ in range(6)]
        for stream in streams:
            stream.feed(saying(5))
            stream.finish()
        finals = await asyncio.gather(*map(final_of, streams))
        for stream in streams:
            await stream.close()
        await recognizer.close()
    assert [final.text for final in finals] == ["5"] * 6
    assert stub.most == 2


async def test_live_streams_go_before_files() -> None:
    async with openai_stub(slow_s=0.1) as stub:
        recognizer = OpenAiRecognizer(stub.url, max_requests=1)
        recognizer._realtime = False
        files = [await recognizer.open(FILE) for _ in range(3)]
        for number, stream in enumerate(files, 1):
            stream.feed(saying(number))
            stream.finish()
        await until(lambda: stub.now)
        live = await recognizer.open(StreamOptions())
        live.feed(saying(9))
        live.finish()
        await asyncio.gather(*map(final_of, [*files, live]))
        heard = [asked.heard for asked in stub.of("hear")]
        for stream in (*files, live):
            await stream.close()
        await recognizer.close()
    assert heard.index(["9"]) == 1


# --- what goes wrong ---

PASSING = {
    "500": status(500),
    "503": status(503, "loading", Retry_After="0.2"),
    "429": status(429, "Rate limit reached", Retry_After="0.2"),
    "cut in the middle": cut_after(b'{"text": "', "application/json"),
    "garbage": says(b"{]", "application/json"),
    "no text": says(b'{"txet": "1"}', "application/json"),
    "a page": says(b"<html>It works!</html>", "text/html"),
    "never ending": endless(b" " * 65536, "application/json"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("live", [True, False], ids=["live", "file"])
async def test_a_fault_that_passes_costs_no_word(fault: Any, live: bool) -> None:
    async with openai_stub() as stub, hearing(stub, StreamOptions(live=live)) as stream:
        stream._recognizer._realtime = False
        stub.faults += [fault, fault]
        stream.feed(saying(1, 2))
        stream.finish()
        assert (await final_of(stream)).text == "1 2"
        assert not stub.faults


async def test_a_server_is_not_asked_before_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse, over = status(429, "slow down", Retry_After="0.6"), []

    async def refuse_for_now(request: web.Request) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(0.6, over.append, request)
        return await refuse(request)

    async with openai_stub() as stub, hearing(stub) as stream:
        stub.faults.append(refuse_for_now)
        stream.feed(saying(1))
        stream.finish()
        await final_of(stream)
        assert over


HOPELESS = {
    "400": (status(400, "the sound is too odd"), "refuses .400: the sound is too odd"),
    "413": (status(413, "too large"), "too large"),
    "no credit": (status(429, "You exceeded your quota", "insufficient_quota"), "no credit"),
}


@pytest.mark.parametrize(("fault", "words"), HOPELESS.values(), ids=HOPELESS)
async def test_what_a_server_refuses_ends_a_file_with_its_words(fault: Any, words: str) -> None:
    async with openai_stub() as stub, hearing(stub) as stream:
        stub.faults.append(fault)
        stream.feed(saying(1))
        stream.finish()
        with pytest.raises(EngineError, match=words) as raised:
            await final_of(stream)
    assert stub.url in str(raised.value)


async def test_sound_and_key_go_nowhere_else() -> None:
    async with openai_stub() as other, openai_stub() as stub, hearing(stub) as stream:
        stub.faults.append(status(307, Location=f"{other.url}/audio/transcriptions"))
        stream.feed(saying(1))
        stream.finish()
        with pytest.raises(EngineError, match=f"redirects to {other.url}"):
            await final_of(stream)
        assert not other.asked


async def test_what_a_server_refuses_is_nothing_said_in_a_call_that_goes_on() -> None:
    async with openai_stub() as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = False
        stub.faults.append(status(400))
        stream.feed(saying(1))
        stream.finish()
        assert await final_of(stream) == Final("", 100, language="und")
        stream.feed(saying(2))
        stream.finish()
        assert (await final_of(stream)).text == "2"


async def test_a_server_that_answers_nothing_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_recognizer_io, "FILE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(utterance_stream_io, "FILE_GIVE_UP_S", 0.5)
    async with openai_stub() as stub, hearing(stub) as stream:
        stub.faults += [stands_still()] * 10
        stream.feed(saying(1))
        stream.finish()
        with pytest.raises(EngineError, match=r"took longer than 0\.2 s"):
            await final_of(stream)


async def test_nobody_at_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        recognizer = OpenAiRecognizer(url)
        with pytest.raises(EngineError, match="no server responds there") as raised:
            await recognizer.start()
        await recognizer.close()
    assert url in str(raised.value)


async def test_a_wrong_key_is_named_and_never_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with openai_stub(key="sesame") as stub:
        recognizer = OpenAiRecognizer(stub.url, "sk-my-secret")
        with pytest.raises(EngineError, match=r"valid API key.*\[asr\] api_key") as raised:
            await recognizer.start(FILE)
        stream = await recognizer.open(StreamOptions())
        stream.feed(saying(1))
        stream.finish()
        assert (await final_of(stream)).text == ""
        await stream.close()
        await recognizer.close()
    assert "sk-my-secret" not in str(raised.value) + caplog.text
    assert "[asr] api_key" in caplog.text


async def test_a_model_that_is_not_there_is_named() -> None:
    async with openai_stub() as stub:
        recognizer = OpenAiRecognizer(stub.url, model="big")
        with pytest.raises(EngineError, match=r"model `big` does not exist.*\[asr\] url or model"):
            await recognizer.start(FILE)
        await recognizer.close()


async def test_a_file_that_comes_faster_than_it_is_heard_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_KEPT_S", 2)
    async with openai_stub() as stub, hearing(stub) as stream:
        for _ in range(30):
            stream.feed(saying(1))
        with pytest.raises(EngineError, match="2 s of sound behind"):
            await final_of(stream)


async def test_sound_that_a_slow_server_cannot_hear_is_dropped_in_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_KEPT_S", 2)
    async with openai_stub() as stub, hearing(stub, StreamOptions()) as stream:
        for _ in range(30):
            stream.feed(saying(1))
        stream.finish()
        assert (await final_of(stream)).audio_ms == 2000


# --- vLLM's /v1/realtime ---


async def test_a_live_stream_goes_to_realtime_where_there_is_one() -> None:
    told: list[Partial] = []
    async with openai_stub(realtime=True) as stub, hearing(stub, StreamOptions()) as stream:
        for number in (1, 2, 3):
            stream.feed(saying(number))
            await asyncio.sleep(0.02)
        await until(lambda: len(stub.of("realtime")[-1:]) and stub.of("realtime")[-1].heard)
        stream.finish()
        assert await final_of(stream, told) == Final("1 2 3", 300, language="und")
        stream.feed(saying(4))
        stream.finish()
        assert (await final_of(stream)).text == "4"
        await until(lambda: not stub.sockets)
    assert told
    assert all(partial.stable_chars == len(partial.text) for partial in told)
    assert not stub.of("hear")


async def test_what_qwen_writes_before_its_text_is_not_shown() -> None:
    prefix = "language English<asr_text>"
    told: list[Partial] = []
    async with (
        openai_stub(realtime=True, delta_prefix=prefix) as stub,
        hearing(stub, StreamOptions()) as stream,
    ):
        stream.feed(saying(1))
        await until(lambda: stub.of("realtime")[1:] and stub.of("realtime")[-1].heard)
        stream.feed(saying(2))
        stream.finish()
        assert (await final_of(stream, told)).text == "1 2"
    assert not any("language" in partial.text for partial in told)


@pytest.mark.parametrize("realtime", [False, True])
async def test_what_a_model_says_over_and_over_is_said_once(realtime: bool) -> None:
    loop, live = " the" * 300, StreamOptions()
    async with openai_stub(realtime=realtime, loop=loop) as stub, hearing(stub, live) as stream:
        stream.feed(saying(1, 2))
        stream.finish()
        assert (await final_of(stream)).text == "1 2 the"


async def test_language_and_context_are_sent_along() -> None:
    options = StreamOptions(language="de", context="Müller")
    async with openai_stub(realtime=True) as stub, hearing(stub, options) as stream:
        stream.feed(saying(1))
        stream.finish()
        assert (await final_of(stream)).language == "de"
        asked = stub.of("realtime")[-1].fields
    assert asked == {
        "type": "session.update",
        "model": "stub",
        "language": "de",
        "prompt": "Müller",
    }


async def test_words_and_files_are_heard_by_requests_all_the_same() -> None:
    async with openai_stub(realtime=True) as stub:
        for options in (FILE, StreamOptions(words=True)):
            async with hearing(stub, options) as stream:
                stream.feed(saying(1))
                stream.finish()
                assert (await final_of(stream)).text == "1"
    assert len(stub.of("hear")) == 2
    assert not stub.of("realtime")


async def test_an_utterance_is_heard_again_when_its_socket_is_lost() -> None:
    async def nothing(request: Any) -> Any:
        return None

    async with openai_stub(realtime=True) as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = True
        stub.faults.append(nothing)  # the server closes instead of answering the last commit
        stream.feed(saying(1, 2, 3))
        stream.finish()
        assert (await final_of(stream)).text == "1 2 3"
    assert len(stub.of("realtime")) == 2


async def test_a_socket_that_says_nothing_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_realtime_io, "DONE_TIMEOUT_S", 0.3)
    async with openai_stub(realtime=True) as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = True
        stub.faults.append(stands_still())
        stream.feed(saying(1, 2))
        await asyncio.wait_for(anext(stream.events()), HANGS_S)  # all it says before the end
        await asyncio.sleep(0.1)
        stream.finish()
        assert (await final_of(stream)).text == "1 2"


async def test_cancelling_closes_the_socket() -> None:
    async with openai_stub(realtime=True) as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = True
        stream.feed(saying(1, 2))
        await until(lambda: stub.sockets)
        stream.cancel()
        await until(lambda: not stub.sockets)
        stream.feed(saying(3))
        stream.finish()
        assert (await final_of(stream)).text == "3"


async def test_a_server_that_loses_its_realtime_is_heard_by_requests() -> None:
    async with openai_stub(realtime=True) as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = True
        stub.realtime = False
        stream.feed(saying(1))
        stream.finish()
        assert (await final_of(stream)).text == "1"
    assert stub.of("hear")


async def test_start_finds_the_way_and_the_model() -> None:
    for realtime in (True, False):
        async with openai_stub(realtime=realtime) as stub:
            recognizer = OpenAiRecognizer(stub.url)
            await recognizer.start()
            assert recognizer._realtime is realtime
            assert recognizer.name == f"stub at {stub.url[7:-3]}"
            assert len(stub.of("hear")) == (not realtime)
            await recognizer.close()


async def test_memory_of_a_long_call_does_not_grow() -> None:
    async with openai_stub() as stub, hearing(stub, StreamOptions()) as stream:
        stream._recognizer._realtime = False
        for _ in range(20):
            stream.feed(np.full(RATE_IN, 3, np.int16))
            stream.finish()
            await final_of(stream)
        assert not list(stream.queue)
        assert not stream.mailbox._events
        turns = stream._recognizer._server.turns
        assert (turns._running, turns._waiting) == (0, [])
