"""Whatever happens in whatever order, every stream says its own text, all of it, once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.script import MAX_TEXT, TextOverrun
from offhook.pipeline.engines.qwen3_tts.simulated import LOUD, SimulatedSegment
from offhook.pipeline.engines.qwen3_tts.streams import (
    EARLY_ENDS,
    FEW_TOKENS,
    MAX_FRAMES,
    QUIET_FRAMES,
    frame_budget,
)
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    Break,
    PromptPosition,
    Reason,
    Spoken,
)
from offhook.pipeline.speech.errors import EngineOverloaded
from tests.pipeline.engines.qwen3_tts.stage import (
    TTS_EOS,
    TTS_PAD,
    VOICES,
    Stage,
    ends_after,
)

SHORT, INSTRUCTED, CLONED, WORDY, READ_AHEAD = VOICES


# --- one stream ---


def test_a_text_is_spoken_to_its_end() -> None:
    stage = Stage()
    number = stage.speak(20)
    stage.run()
    ((segment, length),) = stage.segments(number)
    assert segment.context == list(SHORT.rows)
    assert stage.text(number) == list(range(20))
    assert segment.texts[20:22] == [TTS_EOS, TTS_PAD]
    assert length == 70  # 3.5 frames a token
    assert stage.reason(number) is Reason.SPOKEN
    assert stage.all_free()
    assert stage.engine.counters.late_frames == 0


def test_the_first_frame_is_heard_at_once() -> None:
    """A step for one and the codec: 3.04 + 1.5 ms; the voice is ready when the text comes."""
    stage = Stage()
    number = stage.open(INSTRUCTED)
    stage.run(1.0)
    assert stage.runner.prefills == [len(INSTRUCTED.rows)]
    assert stage.runner.batches == []
    stage.write(number)
    stage.run(1.0)
    time, first = stage.spoken(number)[0]
    assert time == pytest.approx(1.00454, abs=0.0005)
    assert len(first.pcm) == FRAME_SAMPLES


def test_the_second_stream_of_a_voice_costs_no_prefill() -> None:
    stage = Stage()
    for _ in range(3):
        stage.speak(10, INSTRUCTED)
        stage.run()
    assert stage.runner.prefills == [len(INSTRUCTED.rows)]


def test_pieces_grow_with_the_lead() -> None:
    stage = Stage()
    stage.speak(40)
    file = stage.speak(40, live=False)
    stage.run()
    live = [piece.count for piece in stage.runner.pieces if piece.slot != 2]
    assert live[:4] == [1, 1, 1, 2]
    assert set(live[4:-1]) == {4}
    counts = [len(spoken.pcm) // FRAME_SAMPLES for _, spoken in stage.spoken(file)]
    assert set(counts[:-1]) == {8}


def test_a_stream_is_made_only_so_far_ahead() -> None:
    stage = Stage()
    number = stage.speak(200)
    stage.run(3.0)
    assert 3.0 < stage.seconds(number) < 3.0 + 0.8


def test_what_is_told_of_the_text_is_what_the_model_had() -> None:
    stage = Stage()
    number = stage.open(CLONED)
    stage.say(number, 60)
    stage.end(number)
    stage.run()
    for _, spoken in stage.spoken(number):
        assert isinstance(spoken, Spoken)
        frames = spoken.first_frame + len(spoken.pcm) // FRAME_SAMPLES
        assert spoken.tokens == min(60, 40 + frames)


# --- text that comes slowly ---


def test_starvation_holds_the_voice_and_never_ends_it() -> None:
    stage = Stage()
    number = stage.open()
    stage.write(number, 3)
    stage.run(100.0)
    assert len(stage.frames(number)) == 3  # all that the text is good for, and all of it heard
    assert len(stage.starved(number)) == 1
    assert stage.reason(number) is None
    stage.write(number, 2, Break.SENTENCE)
    stage.end(number)
    stage.run()
    assert stage.text(number) == list(range(5))
    assert len(stage.segments(number)) == 1
    assert stage.reason(number) is Reason.SPOKEN
    assert stage.engine.counters.late_frames == 0  # nobody waited for the device


def test_what_a_held_voice_has_said_is_heard() -> None:
    stage = Stage()
    number = stage.open()
    stage.write(number, 12)
    stage.run(5.0)
    assert stage.frames(number) == [(0, frame) for frame in range(12)]


def test_a_sentence_with_nothing_behind_it_is_spoken_to_its_end() -> None:
    """An agent that says "One moment, please." and looks something up."""
    stage = Stage()
    number = stage.open()
    stage.say(number, 6)
    stage.run(60.0)
    assert len(stage.frames(number)) == 21
    assert stage.starved(number) == []
    assert stage.reason(number) is None
    assert stage.engine.pages_left == Stage().engine.pages_left  # it holds none meanwhile
    stage.say(number, 4)
    stage.end(number)
    stage.run()
    assert stage.text(number) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [length for _, length in stage.segments(number)] == [21, 14]
    assert stage.engine.counters.late_frames == 0


def test_a_sentence_that_is_soon_followed_by_another_goes_on() -> None:
    stage = Stage()
    number = stage.open()
    for _ in range(4):
        stage.say(number, 6)
        stage.run(0.1)
    stage.end(number)
    stage.run()
    assert len(stage.segments(number)) == 1


def test_a_stream_without_text_just_ends() -> None:
    stage = Stage()
    number = stage.open()
    stage.end(number)
    stage.run()
    assert stage.reason(number) is Reason.SPOKEN
    assert stage.frames(number) == []
    assert stage.all_free()


def test_too_much_text_is_not_taken() -> None:
    stage = Stage()
    number = stage.open()
    stage.engine.write(number, [20_000] * MAX_TEXT, Break.WORD, 0.0)
    with pytest.raises(TextOverrun, match=f"{MAX_TEXT} tokens are waiting to be spoken"):
        stage.engine.write(number, [1], Break.WORD, 0.0)


# --- long texts ---


def test_a_long_text_is_cut_at_the_ends_of_sentences() -> None:
    stage = Stage()
    number = stage.speak(700)
    stage.run()
    assert stage.text(number) == list(range(700))
    segments = stage.segments(number)
    for segment, length in segments:
        assert length <= MAX_FRAMES
        assert segment.context == list(SHORT.rows)
        words = [token - 10_000 for token in segment.texts if token >= 10_000]
        assert words[-1] % 14 == 13
    assert len({segment.seed for segment, _ in segments}) == len(segments) == 10
    assert stage.engine.counters.late_frames == 0
    assert stage.all_free()


@pytest.mark.parametrize(("comma", "cut"), [(True, 76), (False, 83)])
def test_a_sentence_without_an_end_is_cut_at_a_comma_or_else_at_a_word(
    comma: bool, cut: int
) -> None:
    """A segment has 91 tokens; a word may have 8."""
    stage = Stage()
    number = stage.open()
    for word in range(100):
        stage.write(number, 1, Break.CLAUSE if comma and word == 75 else Break.WORD)
    stage.end(number)
    stage.run()
    first, _ = stage.segments(number)[0]
    assert sum(token >= 10_000 for token in first.texts) == cut


def test_where_pages_are_few_segments_are_shorter() -> None:
    stage = Stage(pages=9 + 6)  # 5 of 6 for a segment: 310 frames, 34 tokens
    number = stage.speak(100)
    stage.run()
    assert stage.text(number) == list(range(100))
    counts = [sum(token >= 10_000 for token in s.texts) for s, _ in stage.segments(number)]
    assert counts == [28, 28, 28, 16]
    assert stage.all_free()


# --- clones that go on from a reference ---


def test_a_clone_waits_for_the_text_that_its_prompt_takes() -> None:
    stage = Stage()
    number = stage.open(CLONED)
    for _ in range(40):
        stage.write(number)
    stage.run(1.0)
    assert stage.frames(number) == []
    stage.write(number)
    stage.run(1.0)
    assert len(stage.frames(number)) == 1
    segment, _ = stage.segments(number)[0]
    assert segment.reference == "codes"
    assert [row.text - 10_000 for row in segment.context[15:]] == list(range(40))


def test_a_clone_begins_with_the_first_whole_sentence() -> None:
    stage = Stage()
    number = stage.open(CLONED)
    stage.say(number, 10)
    stage.write(number, 3)
    stage.run(20.0)
    ((segment, length),) = stage.segments(number)
    text = [row.text for row in segment.context[15:]]
    assert text[:11] == [*range(10_000, 10_010), TTS_EOS]
    assert set(text[11:]) == {TTS_PAD}
    assert length > 0
    assert stage.reason(number) is None
    stage.end(number)
    stage.run()
    assert stage.text(number) == list(range(13))


# --- a model that does not find its end, or finds it too early ---


# --- whole texts ---


def test_a_whole_text_goes_in_before_the_first_frame() -> None:
    stage = Stage()
    number = stage.speak(20, READ_AHEAD)
    stage.run()
    ((segment, length),) = stage.segments(number)
    text = [
        PromptPosition(token, READ_AHEAD.beside_text) for token in (*range(10_000, 10_020), TTS_EOS)
    ]
    assert segment.context == [*READ_AHEAD.rows, *text]
    assert set(segment.texts) == {TTS_PAD}
    assert length == 70
    assert stage.reason(number) is Reason.SPOKEN
    assert stage.all_free()


def test_a_whole_text_is_waited_for() -> None:
    stage = Stage()
    number = stage.open(READ_AHEAD)
    stage.say(number, 28)  # two sentences
    stage.run(2.0)
    assert not stage.spoken(number)
    stage.say(number, 5)
    stage.end(number)
    stage.run()
    assert stage.text(number) == list(range(33))
    assert len(stage.segments(number)) == 1


def test_a_long_whole_text_is_spoken_in_segments_that_end_with_sentences() -> None:
    """The same as those of text that comes while it is spoken."""
    lengths = []
    for voice in (READ_AHEAD, SHORT):
        stage = Stage()
        number = stage.speak(300, voice)
        stage.run()
        assert stage.text(number) == list(range(300))
        lengths.append([length for _, length in stage.segments(number)])
        assert stage.all_free()
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) > 3


def test_whole_texts_do_not_begin_all_at_once() -> None:
    stage = Stage()
    numbers = [stage.speak(60, READ_AHEAD) for _ in range(30)]
    stage.run()
    assert max(stage.runner.prefills) <= 512
    assert all(stage.text(number) == list(range(60)) for number in numbers)


def test_a_pause_in_a_whole_text_is_not_its_end() -> None:
    """The model has all of the text, and what it says of it is still to come."""
    stage = Stage(quiet=lambda segment, frame: frame < 35)
    number = stage.speak(40, READ_AHEAD)
    stage.run()
    assert stage.reason(number) is Reason.SPOKEN
    assert len(stage.frames(number)) == 140


def test_a_model_that_does_not_end_is_stopped() -> None:
    stage = Stage(ends=lambda segment: False)
    number = stage.speak(10)
    stage.run()
    assert len(stage.frames(number)) == frame_budget(10)
    assert stage.reason(number) is Reason.BUDGET
    assert stage.engine.counters.budget_ends == 1
    assert stage.all_free()


def test_a_model_that_falls_silent_is_stopped() -> None:
    def quiet(segment: SimulatedSegment, frame: int) -> bool:
        return frame > 50 or 5 < frame < 15

    stage = Stage(ends=lambda segment: False, quiet=quiet)
    number = stage.speak(20)
    stage.run()
    assert 51 + QUIET_FRAMES <= len(stage.frames(number)) <= 51 + QUIET_FRAMES + 3
    assert stage.reason(number) is Reason.SILENCE
    assert stage.all_free()


def test_a_pause_while_text_is_missing_is_not_the_end() -> None:
    stage = Stage(quiet=lambda segment, frame: 0 <= segment.texts[frame] - 10_000 < 50)
    number = stage.open()
    for _ in range(80):
        stage.write(number, 1)
        stage.run(0.08)
    stage.end(number)
    stage.run()
    assert stage.reason(number) is not Reason.SILENCE
    assert stage.text(number) == list(range(80))


def test_a_model_that_ends_too_early_goes_on_in_a_new_segment() -> None:
    def ends(segment: SimulatedSegment) -> bool:
        return usual(segment) or (segment.number == 0 and len(segment.texts) == 8)

    usual = ends_after(3.5, TTS_EOS)
    stage = Stage(ends=ends)
    number = stage.speak(20)
    stage.run()
    assert [length for _, length in stage.segments(number)] == [7, 45]
    assert stage.text(number) == list(range(20))
    assert stage.reason(number) is Reason.SPOKEN
    assert stage.engine.counters.early_ends == 1
    assert stage.engine.counters.wasted_frames == 0  # there was time to look


def test_a_model_that_always_ends_too_early_is_given_up() -> None:
    stage = Stage(ends=lambda segment: len(segment.texts) == 4)
    number = stage.speak(100)
    stage.run()
    assert len(stage.segments(number)) == EARLY_ENDS + 1
    assert stage.reason(number) is Reason.EARLY
    stage.write(number)  # nobody is there
    stage.end(number)
    stage.run()
    assert stage.all_free()


# --- many ---


def test_slots_are_given_back() -> None:
    stage = Stage(slots=3)
    numbers = [stage.speak(10) for _ in range(3)]
    with pytest.raises(EngineOverloaded, match="3 streams speak, the most there may be"):
        stage.open()
    stage.run(0.05)
    stage.engine.cancel(numbers[1])
    again = stage.speak(10)
    stage.run()
    assert stage.text(again) == list(range(10))
    assert stage.reason(numbers[1]) is None
    assert stage.all_free()


def test_who_finds_no_pages_waits_in_order_and_everybody_speaks() -> None:
    stage = Stage(pages=9 + 13)
    numbers = [stage.open() for _ in range(12)]
    for number in numbers:
        stage.say(number, 30)
        stage.run(0.01)
        if number % 2:
            stage.end(number)
    stage.run(200.0)
    for number in numbers:
        assert stage.text(number) == list(range(30))
        stage.end(number)
    stage.run()
    firsts = [stage.first_sound(number) for number in numbers]
    assert firsts == sorted(firsts)
    assert stage.all_free()


def test_more_voices_than_prefixes_are_kept() -> None:
    """8 pages: four voices of 2."""
    stage = Stage()
    voices = [
        VoicePrompt(f"voice {i}", tuple(row._replace(codec=i) for row in INSTRUCTED.rows))
        for i in range(10)
    ]
    numbers = [stage.speak(10, voices[i % 10]) for i in range(30)]
    stage.run()
    for i, number in enumerate(numbers):
        ((segment, _),) = stage.segments(number)
        assert segment.context == list(voices[i % 10].rows)
        assert stage.text(number) == list(range(10))
    assert stage.all_free()


def test_nobody_goes_before_who_waits_for_pages() -> None:
    stage = Stage(pages=9 + 17)
    stage.speak(60)  # 9 pages
    stage.run(0.1)
    stage.open()
    stage.write(2)  # it could use 13, and is given 5
    stage.run(0.1)
    stage.open()
    stage.write(3)  # 5 at least: 3 are left
    stage.run(0.1)
    word = stage.speak(1)  # one would do
    stage.run(0.5)
    assert stage.spoken(2)
    assert not stage.spoken(3)
    assert not stage.spoken(word)
    stage.run(20.0)
    assert stage.first_sound(3) <= stage.first_sound(word)


def test_voices_that_come_together_are_computed_together_as_far_as_they_fit() -> None:
    """3 pages each, 8 in all."""
    stage = Stage()
    voices = [
        VoicePrompt(f"voice {i}", tuple(PromptPosition(1000 * i + row) for row in range(130)))
        for i in range(1, 7)
    ]
    numbers = [stage.speak(10, voice) for voice in voices]
    stage.run()
    assert stage.runner.prefills[0] == 260
    for voice, number in zip(voices, numbers, strict=True):
        ((segment, _),) = stage.segments(number)
        assert segment.context == list(voice.rows)


def test_many_clones_do_not_begin_all_at_once() -> None:
    """40 rows of prefill each, before everybody's frames."""
    stage = Stage()
    numbers = [stage.speak(50, CLONED) for _ in range(30)]
    stage.run()
    assert len(stage.runner.prefills) >= 3
    assert max(stage.runner.prefills) <= 512
    assert all(stage.text(number) == list(range(50)) for number in numbers)


class Play:
    """Streams that do this and that, on a device where models misbehave."""

    def __init__(self, seed: int, pages: int, wild: bool) -> None:
        self.random = random.Random(seed)
        self.wild = wild
        self.stage = Stage(slots=6, pages=pages, ends=self.model_ends, quiet=self.quiet)
        self.cancelled: dict[int, int] = {}
        """And how much of it had been told."""
        self.ended: set[int] = set()

    def model_ends(self, segment: SimulatedSegment) -> bool:
        number = segment.number
        if self.wild and number % 5 == 4:
            return False
        early = self.wild and number % 3 == 1 and len(segment.texts) == 3 + number % 7
        return early or ends_after(3.5, TTS_EOS)(segment)

    def quiet(self, segment: SimulatedSegment, frame: int) -> bool:
        return self.wild and segment.number % 10 == 4 and frame > 60

    def act(self) -> None:
        stage, pick = self.stage, self.random
        going = [n for n in stage.written if n not in self.ended | self.cancelled.keys()]
        what = pick.randrange(10)
        if what < 2 and stage.engine.slots_left:
            stage.open(pick.choice(VOICES), live=pick.random() < 0.8, seed=pick.getrandbits(60))
        elif what < 6 and going:
            ends = pick.choice((Break.WORD, Break.WORD, Break.CLAUSE, Break.SENTENCE))
            for _ in range(pick.choice((1, 3, 40))):
                stage.write(pick.choice(going), pick.randrange(1, 4), ends)
        elif what == 6 and going:
            self.ended.add(number := pick.choice(going))
            stage.end(number)
        elif what == 7 and stage.written and pick.random() < 0.4:
            number = pick.choice(list(stage.written))
            if number not in self.cancelled:
                stage.engine.cancel(number)
                self.cancelled[number] = len(stage.spoken(number))
        else:
            stage.run(pick.choice((0.0, 0.001, 0.003, 0.01, 0.1, 1.0)))

    def finish(self) -> None:
        stage = self.stage
        stage.run(3.0)
        for number in stage.written:
            if number not in self.ended | self.cancelled.keys():
                assert stage.reason(number) in (None, Reason.EARLY)
                stage.end(number)
        stage.run()

    def check(self) -> None:
        stage = self.stage
        for number, written in stage.written.items():
            text = stage.text(number)
            assert text == list(range(len(text)))
            if number in self.cancelled:
                assert len(stage.spoken(number)) == self.cancelled[number]
                continue
            reason = stage.reason(number)
            assert reason is not None
            if reason is not Reason.EARLY:
                # A full stop that the model had no frame for may be missing.
                assert written - len(text) <= (FEW_TOKENS if self.wild else 0)
        assert stage.all_free()


@settings(max_examples=settings.default.max_examples // 6)
@given(st.integers(0, 2**32), st.sampled_from((9 + 16, 9 + 40, 600)), st.booleans())
def test_any_streams_say_all_their_text_in_order(seed: int, pages: int, wild: bool) -> None:
    """Pages and codes are watched by the simulated runner."""
    play = Play(seed, pages, wild)
    for _ in range(50):
        play.act()
    play.finish()
    play.check()


def test_loud_is_loud() -> None:
    """Or the guard against silence would end everything here."""
    stage = Stage()
    number = stage.speak(5)
    stage.run()
    assert all(int(spoken.pcm.max()) == LOUD for _, spoken in stage.spoken(number))
