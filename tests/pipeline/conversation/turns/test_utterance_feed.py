"""Which audio the recognizer is fed, and which of its finals are words of the turn."""

from collections.abc import Sequence

import numpy as np
import pytest

from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.turns.caller_audio import CallerAudio
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.turn import Turn, TurnState
from offhook.pipeline.conversation.turns.utterance_feed import (
    FEED_MS,
    MANUAL_TURN_S,
    PRE_ROLL_MS,
    FeedState,
    UserAudioListener,
    UtteranceFeed,
)
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, Partial

S = FeedState
NOBODY = -(10**9)
"""Position up to which nothing is echo."""


class Recognizer:
    """Notes what it is to do, with the ms that it was fed before."""

    whole_turns = False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fed_ms = self.due = 0

    def feed(self, pcm: Pcm) -> None:
        self.fed_ms += len(pcm) // 16

    def finish(self) -> None:
        self.due += 1
        self._note("finish")

    def cancel(self) -> None:
        self._note("cancel")

    def drop_finished(self) -> int:
        dropped, self.due = self.due, 0
        return dropped

    def _note(self, what: str) -> None:
        self.done.append(f"{what} {self.fed_ms}")
        self.fed_ms = 0


class Whole(Recognizer):
    whole_turns = True


class Listener(UserAudioListener):
    def __init__(self) -> None:
        self.ms = self.discarded = 0

    def on_audio(self, pcm: Pcm) -> None:
        self.ms += len(pcm) // 16

    def on_discard(self) -> None:
        self.discarded += 1


class Caller:
    """Speaks in a turn whose state is the test's."""

    def __init__(self, recognizer: Recognizer | None = None) -> None:
        self.facts = Facts()
        self.turn = Turn()
        self.audio = CallerAudio(EnhancementSettings("off", False), "", 200, lambda event: None)
        self.recognizer = recognizer or Recognizer()
        self.listener = Listener()
        self.feed = UtteranceFeed(self.audio, self.recognizer, self.facts)  # type: ignore[arg-type]
        self.feed.listen(self.listener)

    def speak(self, ms: int, state: TurnState = TurnState.HEARING, *, voice: bool = True) -> None:
        self.turn.state, self.facts.voice = state, voice
        if not self.feed.feeding:
            self.audio.onset = self.audio.end
        for _ in range(ms // PACKET_MS):
            self.audio.add(np.zeros(SAMPLES_IN, np.int16))
            self.feed.feed(self.turn, NOBODY)

    def finals(self, *texts: str) -> list[bool]:
        self.recognizer.due -= len(texts)
        return [self.feed.receive(Final(text, 0)) for text in texts]

    @property
    def words(self) -> Sequence[str]:
        return self.facts.turn_text, self.facts.text


def test_an_utterance_begins_before_its_onset() -> None:
    caller = Caller()
    caller.speak(1000, TurnState.LISTENING)
    caller.speak(200, voice=False)
    assert (caller.feed.state, caller.listener.ms) == (S.EMPTY, 0)
    caller.speak(200)
    caller.feed.feed_rest()
    caller.feed.finish()
    assert caller.recognizer.done == [f"finish {PRE_ROLL_MS + 200}"]
    assert caller.listener.ms == PRE_ROLL_MS + 200
    caller.speak(FEED_MS, TurnState.ENDING)
    caller.feed.finish()
    assert caller.recognizer.done[1:] == [f"finish {FEED_MS}"]  # nothing is fed twice


def test_what_the_turn_is_not_waiting_for_is_not_fed() -> None:
    caller = Caller()
    caller.turn.finished = True
    caller.speak(200, TurnState.ENDING)
    caller.feed.feed_rest()
    assert (caller.feed.state, caller.recognizer.fed_ms) == (S.EMPTY, 0)


def test_a_final_that_comes_late_is_part_of_the_turn() -> None:
    caller = Caller()
    caller.speak(200)
    caller.feed.finish()
    caller.speak(200)
    caller.feed.go_on()
    caller.feed.finish()
    caller.speak(200)
    assert (caller.feed.state, caller.facts.words_due) == (S.FED_ON, True)
    assert caller.feed.receive(Partial("three", 0, 0))
    assert not caller.feed.receive(Partial("three", 0, 0))
    assert caller.finals("one", "two") == [False, False]
    assert (caller.feed.state, caller.words) == (S.FED, ("one two", "three"))
    caller.finals("unasked")
    caller.feed.finish()
    caller.feed.receive(Final("three", 0, continues=True))
    assert caller.finals("four") == [True]
    assert (caller.feed.state, caller.facts.final) == (S.FINAL, True)
    assert caller.words == ("one two unasked three", "four")


def test_two_finals_are_due_at_the_end() -> None:
    caller = Caller()
    for _ in range(2):
        caller.speak(200)
        caller.feed.finish()
    assert caller.finals("one", "two", "nobody's") == [False, True, False]
    assert caller.words == ("one", "two")


def test_finals_of_cancelled_utterances_are_ignored() -> None:
    caller = Caller()
    caller.speak(200)
    caller.feed.finish()
    caller.feed.cancel()
    caller.speak(200)
    caller.feed.cancel()
    assert caller.recognizer.done[1].startswith("cancel")
    assert caller.listener.discarded == 2
    caller.speak(200)
    caller.feed.finish()
    assert not caller.feed.receive(Partial("one", 0, 0))
    assert caller.finals("one", "two") == [False, True]
    assert caller.words == ("", "two")


def test_audio_of_a_turn_that_has_words_is_kept() -> None:
    caller = Caller()
    caller.facts.turn_text = "one"
    caller.feed.cancel()
    assert caller.listener.discarded == 0


def test_without_audio_the_final_is_empty() -> None:
    caller = Caller()
    caller.feed.finish()
    assert (caller.facts.final, caller.words) == (True, ("", ""))
    caller.feed.go_on()
    assert caller.feed.state is S.EMPTY


@pytest.mark.parametrize(("over", "before"), [(True, ""), (False, "one")])
def test_sound_over_the_agent_does_not_continue_the_words_before(over: bool, before: str) -> None:
    caller = Caller()
    caller.speak(200)
    caller.feed.finish()
    caller.finals("one")
    caller.speak(200, TurnState.SUSPECTED if over else TurnState.HEARING)
    assert caller.words == (before, "")


def test_the_last_utterance_is_fed_again_to_who_understands_whole_turns() -> None:
    caller = Caller(Whole())
    caller.speak(200)
    caller.feed.finish()
    caller.feed.go_on()
    assert (caller.feed.state, caller.facts.words_due) == (S.FED, False)
    caller.speak(100)
    caller.feed.finish()
    assert caller.recognizer.done == ["finish 200", "finish 300"]
    caller.finals("one two")
    caller.feed.go_on()
    caller.feed.finish()
    assert caller.feed.receive(Final("", 0, lost=True))
    assert caller.facts.text == "one two"  # what was recognized of it before


@pytest.mark.parametrize(
    ("ends", "goes_on", "done"),
    [(False, False, []), (True, False, ["finish 200"]), (True, True, [])],
)
def test_another_recognizer_hears_the_utterance_from_its_beginning(
    ends: bool, goes_on: bool, done: list[str]
) -> None:
    caller, other = Caller(), Recognizer()
    caller.speak(200)
    if ends:
        caller.feed.finish()
    if goes_on:
        caller.speak(200)
    caller.feed.replace(other)  # type: ignore[arg-type]
    assert (other.done, other.fed_ms) == (done, 0 if done else 200)
    caller.feed.finish()
    assert caller.finals("words") == [True]


def test_another_listener_hears_the_utterance_from_its_beginning() -> None:
    caller, other = Caller(), Listener()
    caller.speak(200)
    caller.feed.listen(other)
    caller.speak(100)
    assert other.ms == 300


def test_a_program_has_all_audio_fed_until_it_is_too_much() -> None:
    caller = Caller()
    caller.speak(1000, TurnState.LISTENING)
    assert not caller.feed.feed_all(0)
    caller.speak(PACKET_MS, TurnState.LISTENING)
    assert not caller.feed.feed_all(0)
    caller.feed.finish()
    assert caller.recognizer.done == ["finish 1020"]
    assert not caller.feed.feed_all(caller.audio.end)
    assert caller.feed.state is S.DUE
    caller.finals("one")
    caller.speak(1000 * MANUAL_TURN_S + PACKET_MS, TurnState.LISTENING)
    assert caller.feed.feed_all(16000)
