"""What each member of a room says is in the record of its call, under his name.

Who speaks says a sentence with a tone of his own in it, which a recognizer writes down: so the
words of one are never those of another.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.servers.scripted import ScriptedRecognizer, ScriptedRecognizerStream
from offhook.media.pcm import Pcm
from offhook.pipeline.speech.errors import EngineOverloaded
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    RecognizerStream,
    StreamOptions,
)
from offhook.web.app.cli.calls_io import story
from tests.support.waiting import HANGS_S, until
from tests.web.edge.rooms.ends import FarEnd, level, sine
from tests.web.edge.rooms.test_conferences import conference, rooms, until_members
from tests.web.edge.rooms.test_supervision import Call, calling
from tests.web.edge.test_extensions import said
from tests.web.edge.test_history import written

TEXT = "Please call me back tomorrow."
WORDS = {450: "caller", 1000: "desk", 1500: "boss"}
"""What is recognized, by the tone."""
TONE_DB = -20.0
"""Level above which there is one; words have less at each of these frequencies."""


class ToneStream(ScriptedRecognizerStream):
    def __init__(self) -> None:
        super().__init__()
        self._sound: list[Pcm] = []

    def feed(self, pcm: Pcm) -> None:
        self._sound.append(pcm)

    def finish(self) -> None:
        sound = np.concatenate(self._sound)
        text = " ".join(word for hz, word in WORDS.items() if level(sound, hz) > TONE_DB)
        self._events.put_nowait(Final(text, len(sound) // 16))
        self.cancel()

    def cancel(self) -> None:
        self._sound.clear()


class ToneRecognizer(ScriptedRecognizer):
    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        return ToneStream()


def says(end: FarEnd) -> int:
    """Has somebody speak; returns for how many packets."""
    sound = said(TEXT)
    end.leg.playout.write(sound // 2 + sine(end.hz, samples=len(sound)) // 4)
    return len(sound) // 480


async def until_understood(condition: Callable[[], object], *ends: FarEnd) -> None:
    """Have them speak until it holds: a machine that is busy loses sound, and words with it."""
    async with asyncio.timeout(HANGS_S):
        while not condition():
            packets = max(says(end) for end in ends)
            await ends[0].listens(packets + 100)


def turns(call: Call) -> dict[str, set[str]]:
    """The words of each member in the record."""
    found: dict[str, set[str]] = {}
    for event in call.events("member_turn"):
        found.setdefault(event["member"], set()).update(event["text"].split())
    return found


async def test_words_by_member_with_the_agent_and_without(tmp_path: Path) -> None:
    async with calling(tmp_path, recognizer=ToneRecognizer()) as call:
        caller = call.ends.by_name["caller"]
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        await until_understood(lambda: turns(call) == {"boss": {"boss"}}, boss)
        await until(lambda: call.events("room_turn"))  # what the agent has understood of it
        await call.asks(action="leave")
        both = {"boss": {"boss"}, "caller": {"caller"}}
        await until_understood(lambda: turns(call) == both, caller, boss)
        assert not call.events("caller_turn")
        assert all(e["began_ms"] < e["at_ms"] for e in call.events("member_turn"))
        await boss.leg.hang_up("enough")
        await call.seen(lambda e: e["event"] == "agent_returned")
        # Alone with the agent, whose turns these are again.
        await until_understood(lambda: call.events("caller_turn"), caller)
        kept = call.edge.records.kept
        assert kept is not None
        row = kept.store.show(call.id)
        assert row is not None
        shown = list(story(row, call.events()))
        assert any("boss: boss" in line for line in shown)


async def test_the_last_words_are_there_before_the_end(tmp_path: Path) -> None:
    async with calling(tmp_path, recognizer=ToneRecognizer()) as call:
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        await boss.listens(says(boss))
        await call.ends.by_name["caller"].leg.hang_up("enough")
        await until(lambda: not call.edge.calls)
        await written(call.edge)
        kinds = [event["event"] for event in call.events()]
        assert turns(call) == {"boss": {"boss"}}
        assert kinds.index("member_turn") < kinds.index("call_ended") == len(kinds) - 1


async def test_what_is_whispered_is_no_part_of_the_words(tmp_path: Path) -> None:
    async with calling(tmp_path, recognizer=ToneRecognizer()) as call:
        desk = await call.ends.from_browser(call.id, "desk", 1000)
        boss = await call.ends.from_browser(call.id, "boss", 1500, role="whisper:desk")
        await boss.listens(says(boss) + 50)
        await until_understood(lambda: turns(call), desk)
        assert turns(call) == {"desk": {"desk"}}


async def test_nothing_of_a_pause_is_kept(tmp_path: Path) -> None:
    more = f'[recording]\nenabled = "always"\ndirectory = "{tmp_path}"\n'
    async with calling(tmp_path, more=more, recognizer=ToneRecognizer()) as call:
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        recording = call.edge.calls[call.id].leg.recording
        recording.pause("operator")
        await until_understood(lambda: call.events("member_turn"), boss)
        assert "boss" not in turns(call)["boss"]
        before = len(call.events("member_turn"))
        await boss.listens(says(boss) // 2)
        recording.resume("operator")  # in the middle
        await until(lambda: len(call.events("member_turn")) > before)
        assert "boss" not in turns(call)["boss"]
        await until_understood(lambda: "boss" in turns(call)["boss"], boss)


async def test_a_conference_with_notes(tmp_path: Path) -> None:
    async with conference(tmp_path, "notes = true\n", recognizer=ToneRecognizer()) as ends:
        for name, hz in (("a", 450), ("b", 1000)):
            await ends.by_sip(name, hz)
            ends.by_name[name].leg.send_dtmf("4711#")
        await until_members(ends, 2)
        [room], kept = rooms(ends), ends.server.edge.records.kept
        names = list(await ends.members(room))
        assert kept is not None

        def found() -> dict[str, str]:
            timeline = kept.store.timeline(room)
            return {e["member"]: e["text"] for e in timeline if e["event"] == "member_turn"}

        await until_understood(lambda: set(found()) == set(names), *ends.by_name.values())
        assert sorted(found().values()) == ["caller", "desk"]


class Deaf(ToneRecognizer):
    """One that has a stream for one caller, and for nobody else."""

    _opened = False

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        if self._opened:
            raise EngineOverloaded("all streams are in use")
        self._opened = True
        return await super().open(options)


async def test_without_a_free_stream_the_record_says_whose_words_are_missing(
    tmp_path: Path,
) -> None:
    async with calling(tmp_path, recognizer=Deaf()) as call:
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        await until(lambda: len(call.events("words_missing")) == 2)
        missing = {event["side"]: event["cause"] for event in call.events("words_missing")}
        assert missing == dict.fromkeys(("caller", "boss"), "all streams are in use")
        # The agent has a stream, and hears everybody.
        await until_understood(lambda: "boss" in str(call.events("caller_turn")), boss)


async def test_words_that_are_not_kept_are_not_recognized(tmp_path: Path) -> None:
    async with calling(tmp_path, words="words = false", recognizer=Deaf()) as call:
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        await until_understood(lambda: call.events("caller_turn"), boss)
        assert not call.events("words_missing")
