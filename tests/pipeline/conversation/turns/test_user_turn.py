"""What listening to a call leaves behind, and that it loses no words, in virtual time."""

import asyncio
import gc
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.servers.scripted import ScriptedRecognizer
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.events import (
    CallerTurn,
    Event,
    PlayoutPaused,
    SpeechStarted,
    TurnDiscarded,
)
from offhook.pipeline.conversation.turns import echo, end_of_turn
from offhook.pipeline.conversation.turns.patience import Doubt
from offhook.pipeline.conversation.turns.turn import TABLE, Action, TurnState
from offhook.pipeline.conversation.turns.turn_audio import WHOLE_S, TurnAudio
from offhook.pipeline.conversation.turns.user_turn_io import (
    TurnDetection,
    UserTurnController,
    UserTurnListener,
)
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SmartTurn
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.pipeline.speech.vad.vad_io import VadBatch


class SilentLeg(Leg):
    def _receive(self, now: float) -> Pcm:
        return np.zeros(SAMPLES_IN, np.int16)

    def _send(self, said: Pcm | None, now: float) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return True


async def test_the_sound_of_a_call_that_ended_does_not_wait_for_the_collector() -> None:
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    leg = SilentLeg("call")
    gc.disable()
    tracemalloc.start()
    try:
        hearing = UserTurnController(
            leg, turn_detection, await ScriptedRecognizer().open(), print, print
        )
        leg.tick(0.02)
        in_the_call, _ = tracemalloc.get_traced_memory()
        await hearing.close()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        await turn_detection.close()
    assert in_the_call - after > SECONDS * RATE_IN * 2


# --- no words are lost ---


LOUD = 8000
"""Level of a caller's words, each of which has another: who hears it knows which word it is."""
WORDS = tuple("abcdefghijkl")
HEARD_SAMPLES = RATE_IN // 20
"""Of a word, by which a recognizer knows it."""


class Loudness:
    """A voice detector that takes what is loud for speech."""

    def open(self, on_window: Callable[[float, float, int], None]) -> "Loudness":
        self._on_window, self._rest, self._end = on_window, np.zeros(0, np.int16), 0
        return self

    def feed(self, pcm: Pcm) -> None:
        self._rest = np.concatenate((self._rest, pcm))
        while len(self._rest) >= WINDOW:
            loud = (abs(self._rest[:WINDOW]) >= LOUD).mean() > 0.5
            self._rest, self._end = self._rest[WINDOW:], self._end + WINDOW
            self._on_window(0.95 if loud else 0.01, -12.0 if loud else -90.0, self._end)

    def close(self) -> None:
        pass


@dataclass
class Judge:
    """An end-of-turn model that always says the same."""

    answer: float
    name: str = "judge"
    window_s: float = SECONDS

    def load(self) -> None:
        pass

    async def probability(self, pcm: Pcm, call_id: str) -> float:
        return self.answer


@dataclass
class WordRecognizer:
    """Knows words by their level, and says so after some time."""

    partial_ms: int
    final_ms: int
    whole_turns: bool = False
    now_ms: int = 0
    _sound: list[Pcm] = field(default_factory=list)
    _heard: str = ""
    _due: deque[tuple[int, Partial | Final]] = field(default_factory=deque)
    _events: "asyncio.Queue[Partial | Final]" = field(default_factory=asyncio.Queue)

    def feed(self, pcm: Pcm) -> None:
        self._sound.append(pcm)
        if (text := self._text()) != self._heard:
            self._heard = text
            self._due.append((self.now_ms + self.partial_ms, Partial(text, 0, 0)))

    def finish(self) -> None:
        self._due.append((self.now_ms + self.final_ms, Final(self._text(), 0)))
        self.cancel()

    def cancel(self) -> None:
        self._sound, self._heard = [], ""

    def drop_finished(self) -> int:
        due = len(self._due)
        self._due = deque(each for each in self._due if isinstance(each[1], Partial))
        return due - len(self._due)

    def _text(self) -> str:
        levels = abs(np.concatenate(self._sound)) - LOUD if self._sound else np.zeros(0)
        counts = [int((levels == number).sum()) for number in range(len(WORDS))]
        return " ".join(WORDS[n] for n, count in enumerate(counts) if count >= HEARD_SAMPLES)

    def tick(self) -> None:
        self.now_ms += PACKET_MS
        while self._due and self._due[0][0] <= self.now_ms:
            self._events.put_nowait(self._due.popleft()[1])

    async def events(self) -> AsyncIterator[Partial | Final]:
        while True:
            yield await self._events.get()

    async def close(self) -> None:
        pass


class Line(SilentLeg):
    """The caller says what is in `saying`, packet by packet."""

    def __init__(self) -> None:
        super().__init__("call")
        self.saying: deque[Pcm] = deque()

    def _receive(self, now: float) -> Pcm:
        return self.saying.popleft() if self.saying else super()._receive(now)


@dataclass(frozen=True)
class Said:
    """A sentence, and the agent's sound that begins in the middle of it."""

    words: tuple[tuple[int, int], ...]
    """Of each how long it is and how long the pause after it, in packets."""
    agent_at: float
    """When the agent begins, as a share of the sentence."""
    agent_packets: int


@dataclass
class Conversation:
    """A caller and a program that has the agent speak whenever it likes."""

    partial_ms: int
    final_ms: int
    answer: float
    whole_turns: bool = False
    recognizer: WordRecognizer | None = None
    events: list[Event] = field(default_factory=list)

    def _open(self) -> None:
        self._leg = Line()
        self._recognizer = self.recognizer or WordRecognizer(
            self.partial_ms, self.final_ms, self.whole_turns
        )
        detection: Any = TurnDetection(
            Loudness(),  # type: ignore[arg-type]
            self._model(),
            enhancement=EnhancementSettings("off", automatic_gain=False),
        )
        self._hearing = UserTurnController(
            self._leg, detection, self._recognizer, self.events.append, lambda occasion: None
        )
        self._hearing.listener = self._Listener(self)
        self._now = 0.0

    def _model(self) -> Any:
        return Judge(self.answer)

    async def run(self, sentences: list[Said]) -> list[set[str]]:
        """Returns which words of each sentence began before the agent's sound."""
        self._open()
        word, expected = 0, []
        try:
            for sentence in sentences:
                await self._pass(150)
                while self._hearing.state is not TurnState.LISTENING:
                    await self._pass(1)
                expected.append(await self._say(sentence, word))
                word += len(sentence.words)
            await self._pass(400)
            return expected
        finally:
            await self._hearing.close()

    async def _say(self, sentence: Said, word: int) -> set[str]:
        total = sum(sum(pair) for pair in sentence.words)
        begins = max(1, round(sentence.agent_at * total))
        before, at = set(), 0
        for number, (length, pause) in enumerate(sentence.words, word):
            self._caller_says(number, length, pause)
            if at < begins:
                before.add(WORDS[number])
            at += length + pause
        await self._pass(begins)
        self._hearing.reply.begin()
        self._agent_says(sentence.agent_packets)
        self._hearing.reply.finish()
        return before

    def _caller_says(self, word: int, packets: int, pause: int = 0) -> None:
        sound = np.full(SAMPLES_IN, LOUD + word, np.int16)
        sound[::2] *= -1
        self._leg.saying.extend([sound] * packets + [np.zeros_like(sound)] * pause)

    def _agent_says(self, packets: int) -> None:
        self._leg.playout.begin()
        noise = np.random.default_rng(packets).integers(-3000, 3000, RATE_OUT // 50)
        for _ in range(packets):
            self._leg.playout.write(noise.astype(np.int16))
        self._leg.playout.end()

    async def _pass(self, packets: int) -> None:
        for _ in range(packets):
            self._now += PACKET_MS / 1000
            self._leg.tick(self._now)
            self._recognizer.tick()
            for _ in range(3):
                await asyncio.sleep(0)

    class _Listener(UserTurnListener):
        def __init__(self, conversation: "Conversation") -> None:
            self._conversation = conversation

        def on_commit(self, text: str) -> None:
            self._conversation._hearing.reply.finish()


class OverTheAgent(Conversation):
    """The agent speaks throughout, and the caller over it."""

    async def run_over(self, sentences: int) -> list[int]:
        """Returns how many ms after the beginning of each sentence the agent paused."""
        pauses = []
        self._open()
        try:
            for word in range(sentences):
                self._hearing.reply.begin()
                self._agent_says(400)
                await self._pass(150)
                began = self._hearing.heard_ms
                self._caller_says(word, 25)
                await self._pass(100)
                (paused,) = [
                    event.at_ms
                    for event in self.events
                    if isinstance(event, PlayoutPaused) and event.at_ms > began
                ]
                pauses.append(paused - began)
            return pauses
        finally:
            await self._hearing.close()


@pytest.mark.parametrize("wrong", [(), (1,), (1, 9)])
async def test_what_passes_for_echo_by_chance_does_not_keep_the_agent_talking(
    monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, ...]
) -> None:
    """On a line that has shown no echo: neither at that moment, nor at the next interruptions."""
    checks = 0

    def explained(*arguments: object) -> tuple[float, int]:
        nonlocal checks
        checks += 1
        return 0.95 if checks in wrong else 0.1, 400 * checks

    monkeypatch.setattr(echo, "_explained", explained)
    assert await OverTheAgent(0, 40, 0.9).run_over(3) == [40, 40, 40]


SENTENCES = st.lists(
    st.builds(
        Said,
        st.lists(st.tuples(st.integers(8, 25), st.integers(0, 12)), min_size=1, max_size=4).map(
            tuple
        ),
        st.floats(0.05, 1.0),
        st.integers(5, 150),
    ),
    min_size=1,
    max_size=3,
)


@example([Said(((8, 9),), 0.8125, 5)], 700, 40, False, False)
@given(
    SENTENCES,
    st.sampled_from([0, 200, 700]),
    st.sampled_from([40, 400, 1500]),
    st.booleans(),
    st.booleans(),
)
def test_words_before_the_agents_sound_are_never_lost(
    sentences: list[Said], partial_ms: int, final_ms: int, sure: bool, wholes: bool
) -> None:
    conversation = Conversation(partial_ms, final_ms, 0.9 if sure else 0.1, wholes)
    expected = asyncio.run(conversation.run(sentences))
    turns = [event.text for event in conversation.events if isinstance(event, CallerTurn)]
    lost = set().union(*expected) - set(" ".join(turns).split())
    assert not lost, (turns, conversation.events)
    assert not wholes or all(len(set(turn.split())) == len(turn.split()) for turn in turns), turns
    ends = [
        type(event)
        for event in conversation.events
        if isinstance(event, SpeechStarted | CallerTurn | TurnDiscarded)
    ]
    assert ends[-1] is not SpeechStarted


class Eager(Conversation):
    """The agent answers each turn at once."""

    async def heard_ms(self, pause_packets: int) -> list[int]:
        """Returns when the agent began to be heard by a caller who says two words with a pause, in
        ms from the end of the first word."""
        self._open()
        sounds: list[int] = []
        self._leg.playout.listener.on_started = lambda: sounds.append(  # type: ignore[method-assign]
            self._hearing.heard_ms - before - WORD_PACKETS * PACKET_MS
        )
        try:
            await self._pass(100)
            before = self._hearing.heard_ms
            self._caller_says(0, WORD_PACKETS, pause_packets)
            self._caller_says(1, WORD_PACKETS)
            await self._pass(250)
            return sounds
        finally:
            await self._hearing.close()

    class _Listener(Conversation._Listener):
        def on_commit(self, text: str) -> None:
            self._conversation._hearing.reply.begin()
            self._conversation._agent_says(10)


WORD_PACKETS = 15


@pytest.mark.parametrize(
    ("doubt", "pause_ms", "heard"),
    [
        (Doubt.WHOLE, 700, 2),
        (Doubt.OPEN, 700, 1),
        (Doubt.OPEN, 900, 1),
        (Doubt.OPEN, 1400, 2),
        (Doubt.HESITANT, 1100, 1),
        (Doubt.HESITANT, 1500, 2),
    ],
)
async def test_who_goes_on_with_a_sentence_does_not_hear_an_agent_that_is_quick(
    monkeypatch: pytest.MonkeyPatch, doubt: Doubt, pause_ms: int, heard: int
) -> None:
    """And nothing of it is lost."""
    monkeypatch.setattr(end_of_turn, "doubt", lambda *about: doubt)
    call = Eager(0, 40, 0.9)
    sounds = await call.heard_ms(pause_ms // PACKET_MS)
    turns = [event.text for event in call.events if isinstance(event, CallerTurn)]
    assert turns == ["a", "b"]
    assert len(sounds) == heard
    if heard == 1:
        assert sounds[0] > pause_ms + WORD_PACKETS * PACKET_MS


@dataclass
class OneByOne(WordRecognizer):
    """Notes what it hears at each end of an utterance."""

    heard: list[str] = field(default_factory=list)
    fails_at: tuple[int, ...] = ()
    """Ends at which it fails, from 1."""

    def finish(self) -> None:
        self.heard.append(self._text())
        if len(self.heard) in self.fails_at:
            self._due.append((self.now_ms + self.final_ms, Final("", 0, lost=True)))
            self.cancel()
        else:
            super().finish()


PAUSES = Said(((15, 25), (15, 25), (15, 0)), 0.99, 0)
"""Three words, and half a second between them."""


@pytest.mark.parametrize("final_ms", [40, 400, 1500])
@pytest.mark.parametrize("wholes", [False, True])
async def test_a_turn_with_pauses_is_heard_as_one(wholes: bool, final_ms: int) -> None:
    recognizer = OneByOne(200, final_ms, wholes)
    conversation = Conversation(200, final_ms, 0.1, recognizer=recognizer)
    await conversation.run([PAUSES])
    (turn,) = [event.text for event in conversation.events if isinstance(event, CallerTurn)]
    assert turn == "a b c"
    assert recognizer.heard == (["a", "a b", "a b c"] if wholes else ["a", "b", "c"])


async def test_what_was_heard_counts_if_the_whole_cannot_be_heard() -> None:
    recognizer = OneByOne(0, 40, whole_turns=True)
    recognizer.fails_at = (3,)
    conversation = Conversation(0, 0, 0.1, recognizer=recognizer)
    await conversation.run([PAUSES])
    (turn,) = [event.text for event in conversation.events if isinstance(event, CallerTurn)]
    assert turn == "a b"


def test_a_long_turn_is_heard_in_parts() -> None:
    recognizer = WordRecognizer(0, 0, whole_turns=True)
    audio = TurnAudio(recognizer)
    second = np.full(RATE_IN, LOUD, np.int16)
    for _ in range(WHOLE_S):
        audio.add(second)
    assert audio.feed_again("as far as it was heard") == 0
    assert audio.text == "as far as it was heard"
    assert sum(map(len, recognizer._sound)) == WHOLE_S * RATE_IN
    audio.add(second)
    assert audio.feed_again("too long") is None
    audio.clear()
    assert audio.feed_again("nothing") is None
    audio.add(second)
    recognizer._sound.clear()
    assert audio.feed_again("the next part") == 0
    assert sum(map(len, recognizer._sound)) == RATE_IN


async def test_words_whose_answer_was_not_heard_count_for_the_next_pause() -> None:
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    hearing = UserTurnController(
        SilentLeg("call"), turn_detection, await ScriptedRecognizer().open(), print, print
    )
    try:
        for text, heard, before in (
            ("it is four one five", False, "it is four one five"),
            ("five five five", False, "it is four one five five five five"),
            ("oh one", True, ""),
            ("nine", False, "nine"),
        ):
            hearing._facts.text, hearing._facts.final = text, True
            hearing._commit(0.0)
            if heard:
                hearing.reply.queue("Thanks")
                hearing.reply.say()
            hearing.interrupt()
            assert hearing._facts.before == before
    finally:
        await hearing.close()
        await turn_detection.close()


async def test_a_flicker_of_noise_does_not_wipe_the_speech_that_is_judged() -> None:
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    hearing = UserTurnController(
        SilentLeg("call"), turn_detection, await ScriptedRecognizer().open(), print, print
    )
    try:
        for state, left_ms in ((TurnState.JUDGING, 300), (TurnState.SPEAKING, 0)):
            hearing._facts.speech_ms = 300
            hearing._turn.state = state
            hearing._voice_window(0.0, -90.0, 512)
            hearing._voice_window(0.9, -20.0, 1024)
            assert hearing._facts.speech_ms == left_ms
            for window in range(3, 20):
                hearing._voice_window(0.0, -90.0, 512 * window)
    finally:
        await hearing.close()
        await turn_detection.close()


async def test_words_that_were_nothing_are_no_part_of_the_next_turn() -> None:
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    hearing = UserTurnController(
        SilentLeg("call"), turn_detection, await ScriptedRecognizer().open(), print, print
    )
    try:
        hearing._facts.turn_text, hearing._facts.text = "okay", "uh-huh"
        nothing = next(row for row in TABLE if row.actions == (Action.RESUME, Action.CANCEL))
        hearing._carry_out(nothing, 0.0)
        assert hearing._facts.words == ""
    finally:
        await hearing.close()
        await turn_detection.close()
