"""An answer that is interrupted keeps the words that the recording of the phone holds: ten answers,
interrupted at ten moments, by SIP and over a carrier's stream.

What is spoken is known, so the recording is not recognized but compared with it, sample by sample:
where its sound ends in the whole answer says which words it holds.
"""

import asyncio
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import numpy as np
import pytest
import soxr
from openai import AsyncOpenAI

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall, Way
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.media.clock_io import PacketClock
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm, dbfs
from offhook.pipeline.conversation.turns import user_turn_io
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS
from offhook.web.app.callers.caller_sip_io import SipCaller
from offhook.web.app.cli.caller_io import spoken, trimmed
from offhook.web.config.config import Config
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.pipeline.conversation.phone import Model, model, says
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import Baresip, needs_baresip
from tests.web.edge.phones import Served, configured, served
from tests.web.edge.test_call_control import KEY, Program
from tests.web.edge.test_carriers import stream_url, webhook
from tests.web.realtime.test_openai_python import Conversation
from tests.web.realtime.test_phone import agents_of

INTERRUPTION = "Stop please, what are your opening hours?"
ANSWERS = (
    "Our shop lies behind the old harbour, next to the bakery with the yellow door, and the "
    "ferry stops in front of it every twenty minutes during summer.",
    "Your bicycle has been repaired, the brakes were worn and the chain was rusty, so both were "
    "replaced on Tuesday by my colleague from the workshop.",
    "Tomorrow the weather will be sunny in the north, cloudy along the coast, and rather windy "
    "wherever mountains rise above the little villages.",
    "The train leaves from platform seven at noon, passes three tunnels and a long bridge, and "
    "arrives before dinner if nothing happens on the way.",
    "We deliver fresh vegetables on Monday, bread and cheese on Thursday, and flowers only when "
    "somebody orders them one week before the wedding.",
    "My grandmother used to say that patience is a garden, whose roots are bitter, while the "
    "fruit that grows there later is sweeter than honey.",
    "Please turn left at the church, follow the river until you see a red barn, then walk up "
    "the hill and ring the bell beside the gate.",
    "The museum opens at ten, children pay nothing, and the guided tour about ancient ships "
    "starts in the great hall under the wooden whale.",
    "This lamp needs a small battery, which lasts for about a year, unless you forget to switch "
    "it off whenever you go to bed at night.",
    "Every winter the lake freezes over, people put on their skates and scarves, and hot "
    "chocolate is sold from a cart near the frozen pier.",
)
FIRST_S, STEP_S = 0.7, 0.5
"""When the caller begins to speak after the answer has begun, in s, and how much later in each
trial."""
WINDOW_S = 0.5
"""Length in s of the end of a stretch of sound that is looked for in the answer, where it can be
by what was before, give or take SLACK_S."""
SLACK_S = 0.03
GAP_S = 0.03
EXACT_S = 0.03
"""How exact the end of a recording is: a packet, and a step of `last_sound`."""
MARKS_EXACT_S = 0.07
"""How exact the position of a carrier is known by its marks; see test_played_is_heard.py."""


@dataclass(frozen=True)
class Speech:
    """An answer as it is spoken: its words, each with its end in s, and its samples."""

    words: list[tuple[str, float]]
    pcm: Pcm


async def speech_of(text: str) -> Speech:
    voice = open_synthesizer()
    await voice.start()
    stream = voice.open()
    stream.write(text)
    stream.end()
    pieces: list[Pcm] = []
    words: list[tuple[str, float]] = []
    async for speech in stream:
        pieces.append(speech.pcm)
        end_s = sum(map(len, pieces)) / RATE_OUT
        words += [(word, end_s) for word in speech.text.split()]
    await voice.close()
    return Speech(words, np.concatenate(pieces))


def last_sound(pcm: Pcm, rate: int) -> int:
    """The end of the last 10 ms that can be heard."""
    size = rate // 100
    frames = pcm[: len(pcm) // size * size].reshape(-1, size)
    loud = [at for at, frame in enumerate(frames) if dbfs(frame) > AUDIBLE_DBFS]
    return (loud[-1] + 1) * size if loud else 0


def stretches(pcm: Pcm, rate: int) -> list[tuple[int, int]]:
    """Where there is sound, from sample to sample, without its pauses of GAP_S and more: those of
    the speech, and those for a caller who was believed to interrupt."""
    size = rate // 100
    frames = pcm[: len(pcm) // size * size].reshape(-1, size)
    loud = np.flatnonzero([dbfs(frame) > AUDIBLE_DBFS for frame in frames])
    if not len(loud):
        return []
    parts = np.split(loud, np.flatnonzero(np.diff(loud) > GAP_S * 100) + 1)
    return [(part[0] * size, (part[-1] + 1) * size) for part in parts]


def end_in(whole: Pcm, part: Pcm, rate: int) -> tuple[float, float]:
    """Where the part's last sound is in the whole, in s, and how alike both are in its last
    WINDOW_S, up to 1. During a pause of the part, the whole may have gone on, or not."""
    end, ended, alike = 0, 0, 0.0
    for start, stop in stretches(part, rate):
        window = part[max(start, stop - int(WINDOW_S * rate)) : stop].astype(float)
        slack = int(SLACK_S * rate)
        first = max(0, end + stop - start - len(window) - slack)
        last = end + stop - ended + slack
        there = whole[first:last].astype(float)
        energy = np.convolve(there**2, np.ones(len(window)), "valid")
        likeness = np.correlate(there, window, "valid")
        likeness /= np.sqrt((window**2).sum() * (energy + 1))
        at = int(likeness.argmax())
        end, ended, alike = first + at + len(window), stop, float(likeness[at])
    return end / rate, alike


def words_held(speech: Speech, cut_s: float) -> int:
    """How many words are in the answer up to `cut_s`, each to its last sound."""
    begin_s = 0.0
    for number, (_, end_s) in enumerate(speech.words):
        sound = speech.pcm[int(begin_s * RATE_OUT) : int(end_s * RATE_OUT)]
        if begin_s + last_sound(sound, RATE_OUT) / RATE_OUT > cut_s:
            return number
        begin_s = end_s
    return len(speech.words)


class Phone(Protocol):
    """A caller that speaks and records what it hears."""

    rate: int
    exact_s: float
    """How exact is known what it has heard."""

    def say(self, pcm: Pcm) -> None:
        """Samples at 24 kHz."""

    def recording(self) -> Pcm: ...


class SipPhone:
    rate = RATE_IN
    exact_s = EXACT_S

    def __init__(self, url: str) -> None:
        self._clock = PacketClock()
        # G.711 keeps the shape of the samples, which Opus does not.
        self._caller = SipCaller(url, self._clock, ("pcmu",))

    async def call(self) -> None:
        await self._caller.call()
        self._clock.add(self._caller.leg)

    def say(self, pcm: Pcm) -> None:
        self._caller.leg.playout.write(pcm)

    def recording(self) -> Pcm:
        return np.concatenate([np.zeros(0, np.int16), *self._caller.leg.heard])

    async def close(self) -> None:
        await self._caller.leg.hang_up("goodbye")
        self._clock.remove(self._caller.leg)
        await self._caller.close()


class CarrierPhone:
    rate = 8_000
    exact_s = EXACT_S + MARKS_EXACT_S

    def __init__(self, call: FarEndCall) -> None:
        self._call = call

    def say(self, pcm: Pcm) -> None:
        self._call.say(pcm, RATE_OUT)

    def recording(self) -> Pcm:
        return self._call.far_end.player.sound()


@asynccontextmanager
async def by_sip(program: Program, there: Model) -> AsyncIterator[tuple[Served, Phone]]:
    port = free_port()
    config = configured("127.0.0.1:9", udp=port, tcp=port, allow_anonymous=True)
    async with served(programmed(config, program, there)) as server:
        phone = SipPhone(f"sip:desk@127.0.0.1:{port}")
        calling = asyncio.create_task(phone.call())
        try:
            yield server, phone
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await phone.close()


@asynccontextmanager
async def by_carrier(program: Program, there: Model) -> AsyncIterator[tuple[Served, Phone]]:
    twilio = {"provider": "twilio", "insecure": True, "port": 0}
    config = Config.model_validate(
        {"server": {"port": 0, "drain_seconds": 0}, "carriers": [twilio]}
    )
    async with served(programmed(config, program, there)) as server:
        url, parameters = stream_url("twilio", await webhook(server, "twilio"))
        far_end = Twilio(CallFacts(call_id="CA17", parameters=parameters))
        call = FarEndCall(far_end, Way(delay_ms=40))
        await call.start(url)
        try:
            yield server, CarrierPhone(call)
        finally:
            await call.close()


def programmed(config: Config, program: Program, there: Model) -> Config:
    """Calls are those of the program, with a scripted model."""
    changed = {
        "server": config.server.model_copy(update={"api_key": KEY}),
        **agents_of(program.url, there),
    }
    return Config.model_validate({**dict(config), **changed})


@dataclass(frozen=True)
class Trial:
    """What one interruption left."""

    kept: list[str]
    """The words of the item."""
    speech: Speech
    cut_s: float
    """How much of the answer the recording holds."""
    alike: float
    """How alike both are there, up to 1."""
    exact_s: float = EXACT_S

    @property
    def held(self) -> list[int]:
        """How many words the recording holds: two numbers if it ends just where a word does."""
        cuts = self.cut_s - self.exact_s, self.cut_s + self.exact_s
        return sorted({words_held(self.speech, cut_s) for cut_s in cuts})

    @property
    def is_same(self) -> bool:
        words = [word for word, _ in self.speech.words]
        return any(self.kept == words[:number] for number in self.held)

    def __str__(self) -> str:
        words, most = [word for word, _ in self.speech.words], self.held[-1]
        held = f"{' or '.join(map(str, self.held))} … {words[max(0, most - 1)]!r}"
        kept = f"{len(self.kept)} … {self.kept[-1] if self.kept else ''!r}"
        same = "same" if self.is_same else "DIFFERENT"
        return f"recording {self.cut_s:.2f} s ({self.alike:.2f}), {held}; item {kept}: {same}"


async def trial(
    talk: Conversation, phone: Phone, speech: Speech, line: Pcm, after_s: float
) -> Trial:
    """The program has the answer spoken, and the caller interrupts it."""
    began = len(phone.recording())
    await talk.send(type="response.create")
    await talk.until("output_audio_buffer.started")
    await asyncio.sleep(after_s)
    phone.say(line)
    kept = await kept_words(talk)
    return compared(kept, speech, phone.recording()[began:], phone.rate, phone.exact_s)


async def kept_words(talk: Conversation) -> list[str]:
    """Those of the answer that is interrupted next."""
    cut = await talk.until("conversation.item.truncated")
    await talk.until("input_audio_buffer.committed")
    await asyncio.sleep(1.0)
    await talk.send(type="conversation.item.retrieve", item_id=cut.item_id)
    item = (await talk.until("conversation.item.retrieved")).item
    words: list[str] = item.content[0].transcript.split()
    return words


def compared(
    kept: list[str], speech: Speech, recording: Pcm, rate: int, exact_s: float = EXACT_S
) -> Trial:
    whole = soxr.resample(speech.pcm, RATE_OUT, rate).astype(np.int16)
    return Trial(kept, speech, *end_in(whole, recording, rate), exact_s)


async def interruption() -> Pcm:
    voice = open_synthesizer()
    await voice.start()
    line = trimmed(await spoken(voice, INTERRUPTION))
    await voice.close()
    return line


async def listening(talk: Conversation) -> None:
    """The program answers only when it wants to."""
    detection = {"type": "server_vad", "create_response": False}
    await talk.update(audio={"input": {"turn_detection": detection}})


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_sip, by_carrier])
async def test_an_interrupted_answer_keeps_what_the_phone_has_recorded(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    monkeypatch.setattr("tests.web.edge.phones.bot", None)
    line = await interruption()
    program, trials = Program(), list[Trial]()
    async with (
        model(*([says(text)] for text in ANSWERS)) as there,
        program.running(),
        way(program, there) as (server, phone),
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as openai,
    ):
        call_id = (await program.event()).data.call_id
        await openai.realtime.calls.accept(call_id, type="realtime", model="model")
        async with openai.realtime.connect(call_id=call_id) as beside:
            talk = Conversation(beside)
            await listening(talk)
            for number, text in enumerate(ANSWERS):
                async with asyncio.timeout(2 * HANGS_S):
                    speech = await speech_of(text)
                    after_s = FIRST_S + STEP_S * number
                    trials.append(await trial(talk, phone, speech, line, after_s))
                sys.stdout.write(f"{way.__name__} {number + 1}: {trials[-1]}\n")
        await openai.realtime.calls.hangup(call_id)
    assert all(each.is_same for each in trials)
    assert all(0 < len(each.kept) < len(each.speech.words) for each in trials)


PERIOD_S = 12.0
"""In which a baresip says the interruption once, at its end but for TAIL_S..."""
TAIL_S = 4.0
RATE = 8_000


@needs_baresip
@pytest.mark.slow
async def test_an_interrupted_answer_keeps_what_a_baresip_has_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its microphone is a file, so the answers begin at different times before the interruptions
    in it."""
    monkeypatch.setattr(user_turn_io, "WORDS_LATE_MS", 60_000)
    monkeypatch.setattr("tests.web.edge.phones.bot", None)
    line = soxr.resample(await interruption(), RATE_OUT, RATE).astype("<i2")
    period = np.zeros(int(PERIOD_S * RATE), "<i2")
    said_at = int((PERIOD_S - TAIL_S) * RATE)
    period[said_at : said_at + len(line)] = line
    phone, program, kept = Baresip(tmp_path / "phone"), Program(), list[list[str]]()
    with wave.open(str(tmp_path / "phone" / "tone.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.tile(period, len(ANSWERS) + 2).tobytes())
    port = free_port()
    async with model(*([says(text)] for text in ANSWERS)) as there, program.running():
        config = configured("127.0.0.1:9", udp=port, tcp=port, allow_anonymous=True)
        async with (
            served(programmed(config, program, there)) as server,
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as openai,
            phone.running(),
        ):
            await phone.command("dial", f"sip:desk@127.0.0.1:{port}")
            call_id = (await program.event()).data.call_id
            await openai.realtime.calls.accept(call_id, type="realtime", model="model")
            await phone.event("CALL_ESTABLISHED")
            began = monotonic()
            async with openai.realtime.connect(call_id=call_id) as beside:
                talk = Conversation(beside)
                await listening(talk)
                for number in range(len(ANSWERS)):
                    said_s = PERIOD_S * (number + 1) - TAIL_S
                    await asyncio.sleep(began + said_s - FIRST_S - STEP_S * number - monotonic())
                    await talk.send(type="response.create")
                    kept.append(await kept_words(talk))
            await phone.hang_up()
    recording = phone.heard()
    trials = []
    for number, text in enumerate(ANSWERS):
        end = int(PERIOD_S * (number + 1) * RATE)
        part = recording[end - int(PERIOD_S * RATE) : end]
        trials.append(compared(kept[number], await speech_of(text), part, RATE))
        sys.stdout.write(f"baresip {number + 1}: {trials[-1]}\n")
    assert all(each.is_same for each in trials)
    assert all(0 < len(each.kept) < len(each.speech.words) for each in trials)
