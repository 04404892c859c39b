"""Which chunks the Nemotron engine hears and what it tells, with a scripted model and clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.nemotron.engine import MAX_LABELS, NemotronEngine
from offhook.pipeline.engines.nemotron.model.model import NemotronConfig
from offhook.pipeline.engines.nemotron.recognizer_io import NemotronOptions
from offhook.pipeline.engines.nemotron.runner import (
    Label,
    Part,
    chunk_begin,
    chunk_samples,
)
from offhook.pipeline.engines.nemotron.utterance import UtteranceAudio
from offhook.pipeline.speech.errors import AudioOverrun, EngineError, EngineOverloaded
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Timing, Word

FRAME = 1280
FIRST = 200
"""Samples that frame 0 needs."""
WAIT = 0.01


class Pieces:
    """Label n says " n" where n is even, and without the space where it is odd."""

    def text(self, ids: Sequence[int]) -> str:
        return "".join(f"{'' if id % 2 else ' '}{id}" for id in ids).strip()

    def begins_word(self, id: int) -> bool:
        return id % 2 == 0

    def language(self, ids: Sequence[int]) -> str | None:
        return "de" if 1000 in ids else None


@dataclass
class Heard:
    said: list[list[Label]]
    read: bool = False

    def labels(self) -> list[list[Label]]:
        self.read = True
        return self.said


@dataclass
class Model:
    """Says what the sound of each frame is: samples of value n say label n - 1; 0 is silence."""

    largest: dict[int, int] = field(default_factory=lambda: {0: 4, 1: 4, 13: 2})
    batches: list[tuple[int, list[Part]]] = field(default_factory=list)
    under_way: list[Heard] = field(default_factory=list)

    def encode(self, lookahead: int, parts: Sequence[Part]) -> Heard:
        assert 0 < len(parts) <= self.largest[lookahead]
        busy = [h for h in self.under_way if not h.read]
        slots = [p.slot for p in parts]
        assert len(set(slots)) == len(slots)
        assert 0 not in slots
        assert len(busy) < 2
        self.batches.append((lookahead, list(parts)))
        heard = Heard([self._said(part, lookahead + 1) for part in parts])
        self.under_way.append(heard)
        return heard

    def _said(self, part: Part, frames: int) -> list[Label]:
        labels = []
        for frame in range(frames):
            place = (part.position + frame) * FRAME + FIRST - 1 - chunk_begin(part.position)
            if place < len(part.pcm) and part.pcm[place] > 0:
                labels.append(Label(frame, int(part.pcm[place]) - 1))
        return labels


@dataclass
class Desk:
    """An engine and all it told."""

    model: Model = field(default_factory=Model)
    told: list[tuple[int, Partial | Final]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        tell = lambda number, event: self.told.append((number, event))  # noqa: E731
        self.engine = NemotronEngine(self.model, Pieces(), 6, 2, tell, WAIT)

    def turn(self) -> bool:
        return self.engine.turn(lambda: self.now)

    def run(self) -> None:
        while self.turn():
            pass

    def of(self, number: int) -> list[Partial | Final]:
        return [event for of, event in self.told if of == number]


def frames(*labels: int) -> Pcm:
    """The first frames of an utterance, each of which says label n, -1 for none."""
    sound = [np.full(FIRST, labels[0] + 1, np.int16)]
    sound += [np.full(FRAME, label + 1, np.int16) for label in labels[1:]]
    return np.concatenate(sound)


def test_a_chunk_is_heard_when_all_its_sound_is_there() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    desk.engine.feed(number, frames(2)[:-1], 0.0)
    assert not desk.turn()
    desk.engine.feed(number, frames(2)[-1:], 0.0)
    desk.run()
    assert desk.of(number) == [Partial("2", 1, 12)]
    desk.engine.feed(number, frames(2, 4, 5)[FIRST:], 0.1)
    desk.run()
    assert desk.of(number)[1:] == [Partial("2 4", 3, 92), Partial("2 45", 4, 172)]
    assert [part.position for _, (part,) in desk.model.batches] == [0, 1, 2]


def test_the_end_of_an_utterance_does_not_wait_for_a_whole_chunk() -> None:
    desk = Desk()
    number = desk.engine.open(13)
    desk.engine.feed(number, frames(2, 4), 0.0)
    desk.run()
    assert desk.of(number) == []
    desk.engine.finish(number, 0.5)
    desk.run()
    words = (Word("2", 0, 80), Word("4", 80, 160))
    assert desk.of(number) == [Final("2 4", 92, words, language="und")]


def test_an_utterance_without_sound_is_final_at_once() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    desk.engine.finish(number, 0.0)
    assert desk.of(number) == [Final("", 0, language="und")]


def test_all_sound_is_heard_though_the_last_frame_is_not_whole() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    desk.engine.feed(number, np.append(frames(2), np.full(1000, 5, np.int16)), 0.0)
    desk.engine.finish(number, 0.0)
    desk.run()
    end = max(chunk_begin(p.position) + len(p.pcm) for _, (p,) in desk.model.batches)
    assert end == FIRST + 1000
    assert isinstance(desk.of(number)[-1], Final)


def test_utterances_follow_each_other_in_order_and_begin_anew() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    for first in (2, 4):
        desk.engine.feed(number, frames(first, first + 1), 0.0)
        desk.engine.finish(number, 0.0)
    desk.run()
    finals = [event for event in desk.of(number) if isinstance(event, Final)]
    assert [final.text for final in finals] == ["23", "45"]
    assert [w.start_ms for final in finals for w in final.words] == [0, 92]
    positions = [part.position for _, (part,) in desk.model.batches]
    assert positions == [0, 1, 0, 1]


def test_what_was_cancelled_is_not_told_even_when_it_was_under_way() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    desk.engine.feed(number, frames(2), 0.0)
    desk.turn()
    desk.engine.cancel(number)
    desk.engine.feed(number, frames(4), 0.0)
    desk.engine.finish(number, 0.0)
    desk.run()
    assert [event.text for event in desk.of(number)] == ["4"]
    assert [part.position for _, (part,) in desk.model.batches] == [0, 0]


def test_a_stream_closed_while_it_is_heard_keeps_its_slot_until_the_batch_is_through() -> None:
    desk = Desk()
    numbers = [desk.engine.open(0) for _ in range(6)]
    with pytest.raises(EngineOverloaded):
        desk.engine.open(0)
    desk.engine.feed(numbers[0], frames(2), 0.0)
    for number in numbers[1:]:
        desk.engine.close(number)
    desk.turn()
    slot = desk.model.batches[0][1][0].slot
    desk.engine.close(numbers[0])
    others = [desk.engine.open(0) for _ in range(5)]
    with pytest.raises(EngineOverloaded):
        desk.engine.open(0)
    desk.run()
    assert desk.of(numbers[0]) == []
    last = desk.engine.open(0)
    desk.engine.feed(last, frames(6), 0.0)
    desk.run()
    assert desk.model.batches[-1][1][0].slot == slot
    assert len(others) == 5


def test_files_have_room_of_their_own() -> None:
    desk = Desk()
    for _ in range(2):
        desk.engine.open(13, live=False)
    with pytest.raises(EngineOverloaded):
        desk.engine.open(13, live=False)
    desk.engine.open(0)


# --- who goes together ---


def test_a_chunk_waits_for_who_else_speaks_but_not_for_long() -> None:
    desk = Desk()
    one, two, silent = (desk.engine.open(0) for _ in range(3))
    desk.engine.feed(one, frames(2), 0.0)
    desk.engine.feed(two, frames(2)[:50], 0.0)
    assert not desk.turn()
    assert desk.engine.timer() == pytest.approx(WAIT)
    desk.engine.feed(two, frames(2)[50:], 0.004)
    desk.now = 0.004
    desk.run()
    assert [len(parts) for _, parts in desk.model.batches] == [2]
    desk.engine.feed(one, frames(2, 4)[FIRST:], 0.08)
    desk.now = 0.08
    assert not desk.turn()
    desk.now = 0.08 + WAIT
    assert desk.turn()
    assert silent


def test_who_speaks_alone_does_not_wait() -> None:
    desk = Desk()
    one, _ = desk.engine.open(0), desk.engine.open(0)
    desk.engine.feed(one, frames(2), 0.0)
    assert desk.turn()


def test_another_right_context_is_no_company() -> None:
    desk = Desk()
    one, two = desk.engine.open(0), desk.engine.open(13)
    desk.engine.feed(two, frames(2), 0.0)
    desk.engine.feed(one, frames(2), 0.0)
    assert desk.turn()


def test_a_full_batch_does_not_wait() -> None:
    desk = Desk()
    numbers = [desk.engine.open(0) for _ in range(5)]
    desk.engine.feed(numbers[4], frames(2)[:50], 0.0)
    for number in numbers[:4]:
        desk.engine.feed(number, frames(2), 0.0)
    assert desk.turn()


def test_the_end_of_an_utterance_waits_for_nobody_and_goes_first() -> None:
    desk = Desk()
    numbers = [desk.engine.open(0) for _ in range(6)]
    for number in numbers:
        desk.engine.feed(number, frames(2), 0.0)
    desk.engine.finish(numbers[5], 0.0)
    desk.turn()
    (_, parts), slot_of_last = desk.model.batches[0], 6
    assert parts[0].slot == slot_of_last


def test_files_are_heard_when_nobody_speaks_and_after_a_while_in_any_case() -> None:
    desk = Desk()
    file, speaker = desk.engine.open(13, live=False), desk.engine.open(0)
    desk.engine.feed(file, np.ones(3 * 14 * FRAME, np.int16), 0.0)
    desk.engine.feed(speaker, frames(2), 0.0)
    desk.turn()
    assert desk.model.batches[0][0] == 0
    desk.run()
    assert [lookahead for lookahead, _ in desk.model.batches] == [0, 13, 13, 13]
    desk.engine.feed(file, np.ones(14 * FRAME, np.int16), 1.0)
    desk.engine.feed(speaker, frames(2, 2)[FIRST:], 1.1)
    desk.now = 1.5
    desk.turn()
    assert desk.model.batches[-1][0] == 13


def test_where_many_wait_the_next_batch_is_launched_before_the_last_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offhook.pipeline.engines.nemotron.engine.AHEAD", 2)
    desk = Desk()
    numbers = [desk.engine.open(0) for _ in range(6)]
    for number in numbers:
        desk.engine.feed(number, frames(2), 0.0)
    desk.turn()
    desk.now = 1.0
    desk.turn()
    assert [len(parts) for _, parts in desk.model.batches] == [4, 2]
    desk.run()
    assert {number for number, _ in desk.told} == set(numbers)


# --- what is told ---


def test_every_chunk_of_a_live_stream_is_told_and_none_of_a_file() -> None:
    desk = Desk()
    live, recording = desk.engine.open(0), desk.engine.open(0, live=False)
    for number in (live, recording):
        desk.engine.feed(number, frames(2, -1, -1, 4), 0.0)
    desk.run()
    texts = [(event.text, event.audio_ms) for event in desk.of(live)]
    assert texts == [("2", 12), ("2", 92), ("2", 172), ("2 4", 252)]
    assert desk.of(recording) == []


@pytest.mark.parametrize(
    ("asked", "labels", "told"),
    [
        (None, (2, 1000), "de"),  # by its tag
        (None, (2, 4), "und"),
        ("fr", (2, 4), "fr"),
        ("pt-BR", (2, 4), "pt"),
        ("no", (2, 1000), "no"),
    ],
)
def test_the_language_told_is_that_asked_for_or_that_of_a_tag(
    asked: str | None, labels: tuple[int, ...], told: str
) -> None:
    desk = Desk()
    languages = {"de": 9, "fr": 8, "pt": 13, "pt-BR": 12, "no": 103}
    config = NemotronConfig(lookaheads=(0, 1, 13), prompts=128, languages=languages)
    number = NemotronOptions(desk.engine, config, config.lookaheads).open(
        StreamOptions(80, language=asked)
    )
    desk.engine.feed(number, frames(*labels), 0.0)
    desk.engine.finish(number, 0.0)
    desk.run()
    final = desk.of(number)[-1]
    assert isinstance(final, Final)
    assert final.language == told


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        (None, 101),
        ("pt", 13),
        ("pt-BR", 12),
        ("pt_br", 12),
        ("pt-AO", 13),  # its region is not known, so the language is taken
        ("zh-Hans", 4),
    ],
)
def test_a_region_has_a_prompt_of_its_own(asked: str | None, prompt: int) -> None:
    desk = Desk()
    languages = {"pt": 13, "pt-BR": 12, "zh": 4}
    config = NemotronConfig(
        lookaheads=(0, 1, 13), prompts=128, default_prompt=101, languages=languages
    )
    hearing = NemotronOptions(desk.engine, config, config.lookaheads)
    number = hearing.open(StreamOptions(80, language=asked))
    desk.engine.feed(number, frames(2), 0.0)
    desk.run()
    [(_, [part])] = desk.model.batches
    assert part.prompt == prompt
    with pytest.raises(EngineError, match=r"does not know 'xx-BR'; it knows pt, pt-BR, zh$"):
        hearing.open(StreamOptions(language="xx-BR"))


def test_a_model_of_english_tells_english() -> None:
    desk = Desk()
    hearing = NemotronOptions(desk.engine, NemotronConfig(), (0, 1, 13))
    number = hearing.open(StreamOptions(80, language="en-GB"))
    other = hearing.open(StreamOptions(80))
    for stream in (number, other):
        desk.engine.finish(stream, 0.0)
    desk.run()
    assert {event.language for _, event in desk.told if isinstance(event, Final)} == {"en"}


def test_a_very_long_utterance_goes_on_in_the_next_final_at_a_word() -> None:
    desk = Desk()
    number = desk.engine.open(0)
    labels = [2 + i % 3 for i in range(MAX_LABELS + 20)]
    desk.engine.feed(number, frames(*labels), 0.0)
    desk.run()
    desk.engine.finish(number, 0.0)
    desk.run()
    first, last = (event for event in desk.of(number) if isinstance(event, Final))
    assert first.continues
    assert not last.continues
    assert f"{first.text} {last.text}" == Pieces().text(labels)
    assert first.audio_ms + last.audio_ms == len(frames(*labels)) // 16
    assert last.words[0].start_ms == first.words[-1].end_ms


def test_the_times_of_an_update_are_told_to_who_asked() -> None:
    desk = Desk()
    number = desk.engine.open(0, timing=True)
    desk.engine.feed(number, frames(2)[:100], 1.0)
    desk.engine.feed(number, frames(2)[100:], 1.25)
    desk.now = 1.5
    desk.turn()
    desk.now = 1.75
    desk.run()
    assert desk.of(number)[0].timing == Timing(1.0, 1.25, 1.5, 1.75)


def test_more_sound_than_may_wait_is_refused_and_none_of_it_taken() -> None:
    desk = Desk()
    number = desk.engine.open(13)
    minute = np.zeros(16_000 * 60, np.int16)
    for _ in range(3):
        desk.engine.feed(number, minute, 0.0)
    with pytest.raises(AudioOverrun):
        desk.engine.feed(number, minute, 0.0)
    desk.run()
    desk.engine.feed(number, minute, 0.0)


@given(
    pieces=st.lists(st.integers(1, 9000), max_size=20),
    size=st.sampled_from([1, 2, 7, 14]),
)
def test_sound_comes_out_as_it_went_in(pieces: list[int], size: int) -> None:
    whole = np.arange(sum(pieces)).astype(np.int16)
    audio, at, taken = UtteranceAudio(size), 0, 0
    for piece in pieces:
        audio.feed(whole[at : at + piece], 1.0)
        at += piece
        assert (audio.fed, audio.unheard) == (at, at - taken)
        while audio.missing <= 0:
            begin = chunk_begin(audio.position)
            cut = audio.pop_chunk(1.0)
            lead = max(0, -begin)
            assert len(cut) == chunk_samples(size)
            assert not cut[:lead].any()
            np.testing.assert_array_equal(cut[lead:], whole[max(0, begin) : begin + len(cut)])
            taken = begin + len(cut)
            assert audio.unheard == at - taken
        assert at < chunk_begin(audio.position) + chunk_samples(size)


@given(
    acts=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["feed", "finish", "cancel", "turn"])),
        max_size=60,
    )
)
def test_every_finished_utterance_has_one_final_with_all_its_words(
    acts: list[tuple[int, str]],
) -> None:
    desk = Desk()
    numbers = [desk.engine.open(r) for r in (0, 1, 13)]
    going: list[list[int]] = [[], [], []]
    expected: list[list[str]] = [[], [], []]
    said = 0
    for who, act in acts:
        number = numbers[who]
        if act == "feed":
            said += 1
            labels = [2 * said % 500, 2 * said % 500 + 1]
            sound = frames(*labels) if not going[who] else frames(0, *labels)[FIRST:]
            going[who] += labels
            desk.engine.feed(number, sound, desk.now)
        elif act == "finish":
            expected[who].append(Pieces().text(going[who]))
            going[who] = []
            desk.engine.finish(number, desk.now)
        elif act == "cancel":
            going[who] = []
            desk.engine.cancel(number)
        else:
            desk.now += 0.02
            desk.turn()
    for who, number in enumerate(numbers):
        desk.engine.finish(number, desk.now)
        expected[who].append(Pieces().text(going[who]))
    desk.now += 1
    desk.run()
    for who, number in enumerate(numbers):
        finals = [event.text for event in desk.of(number) if isinstance(event, Final)]
        assert finals == expected[who]
