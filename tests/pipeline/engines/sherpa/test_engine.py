"""What the sherpa engine tells of real streams of tiny models, which know chords as words."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sherpa_onnx")

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.sherpa import engine as engine_module
from offhook.pipeline.engines.sherpa.engine import SherpaEngine
from offhook.pipeline.engines.sherpa.model import Hypothesis, SherpaStreams
from offhook.pipeline.engines.sherpa.model_files import read_model
from offhook.pipeline.engines.sherpa.recognizer_io import SherpaOptions, SherpaRecognizer
from offhook.pipeline.speech.errors import (
    AudioOverrun,
    EngineError,
    EngineOverloaded,
    UnsupportedRequest,
)
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Timing, Word
from tests.support import tiny_sherpa
from tests.support.tiny_sherpa import sound, text

MELODIES: list[tuple[int, ...]] = [(0, 1, 2, 3), (6, 5, 4), (2, 7, 0, 5, 1), (4,), (0, 1, 0, 1, 0)]
LIVE, FILE = StreamOptions(), StreamOptions(live=False)
MAKE: dict[str, Callable[[Path], Path]] = {
    "zipformer2": tiny_sherpa.zipformer2,
    "zipformer2-ctc": tiny_sherpa.zipformer2_ctc,
    "nemo": tiny_sherpa.nemo,
}


@pytest.fixture(scope="module", params=MAKE)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SherpaStreams:
    folder = MAKE[request.param](tmp_path_factory.mktemp("sherpa"))
    return SherpaStreams(read_model(folder, str(folder)), 1)


@pytest.fixture(scope="module")
def zipformer(tmp_path_factory: pytest.TempPathFactory) -> SherpaStreams:
    folder = tiny_sherpa.zipformer2(tmp_path_factory.mktemp("sherpa"))
    return SherpaStreams(read_model(folder, str(folder)), 1)


class Desk:
    """An engine and all it told."""

    def __init__(self, model: SherpaStreams, batch: int = 3) -> None:
        self.told: list[tuple[int, Partial | Final]] = []
        self.now = 0.0
        c = model.model
        tell = lambda number, event: self.told.append((number, event))  # noqa: E731
        self.engine = SherpaEngine(model, c.chunk_ms, c.tail_ms, c.frame_ms, 6, 2, tell, batch)

    def run(self) -> None:
        while self.engine.turn(lambda: self.now):
            pass

    def of(self, number: int) -> list[Partial | Final]:
        return [event for of, event in self.told if of == number]

    def finals(self, number: int) -> list[Final]:
        return [event for event in self.of(number) if isinstance(event, Final)]

    def say(self, number: int, pcm: Pcm, step: int = 320) -> None:
        for at in range(0, len(pcm), step):
            self.engine.feed(number, pcm[at : at + step], self.now)
            self.run()
        self.engine.finish(number, self.now)
        self.run()


def test_chords_become_the_words_that_the_model_knows(model: SherpaStreams) -> None:
    desk = Desk(model)
    number = desk.engine.open(LIVE)
    pcm = sound(0, 1, 2, 3, 4)
    desk.say(number, pcm)
    *partials, final = desk.of(number)
    assert isinstance(final, Final)
    assert (final.text, final.audio_ms) == ("dore mifa so", len(pcm) // 16)
    assert [word.text for word in final.words] == ["dore", "mifa", "so"]
    # A chord begins every 600 ms; the engine is exact to a frame.
    for word, begin in zip(final.words, (0, 1200, 2400), strict=True):
        assert abs(word.start_ms - begin) <= 80 + 40
        assert word.start_ms < word.end_ms <= final.audio_ms
    assert len(partials) >= len(pcm) // 16 // model.model.chunk_ms - 1
    stable = ""
    for partial in partials:
        assert isinstance(partial, Partial)
        assert partial.text.startswith(stable)
        assert final.text.startswith(partial.text)
        stable = partial.text[: partial.stable_chars]
    assert "dore mi" in [p.text for p in partials if isinstance(p, Partial)]
    assert stable == "dore mifa "


def test_what_a_voice_of_sherpa_was_given_to_say_is_read_back_from_its_sound(
    model: SherpaStreams, tmp_path: Path
) -> None:
    import sherpa_onnx

    folder = tiny_sherpa.voice(tmp_path)
    vits = sherpa_onnx.OfflineTtsVitsModelConfig(
        model=str(folder / "model.onnx"), tokens=str(folder / "tokens.txt"), lexicon=""
    )
    tts = sherpa_onnx.OfflineTts(
        sherpa_onnx.OfflineTtsConfig(
            model=sherpa_onnx.OfflineTtsModelConfig(vits=vits, num_threads=1),
            max_num_sentences=1,
            silence_scale=1.0,  # pauses are kept
        )
    )
    desk = Desk(model)
    for labels in MELODIES:
        if len(labels) == 1:
            continue  # sherpa-onnx speaks no text of one character
        letters = "".join(tiny_sherpa.LETTERS[label] for label in labels)
        spoken = tts.generate(letters)
        assert spoken.sample_rate == RATE_IN
        number = desk.engine.open(LIVE)
        desk.say(number, (np.array(spoken.samples) * 32767).astype(np.int16))
        assert desk.finals(number)[0].text == text(*labels)
        desk.engine.close(number)


@pytest.mark.parametrize("lead_s", [0.0, 0.05, 0.11, 0.17, 0.23, 0.29])
def test_the_last_word_is_not_lost_however_the_utterance_fits_the_chunks(
    model: SherpaStreams, lead_s: float
) -> None:
    desk = Desk(model)
    number = desk.engine.open(LIVE)
    # Cut off in the middle of the last chord, where the model has yet to look ahead.
    pcm = sound(0, 1, 2, lead_s=lead_s)[: -int(0.45 * RATE_IN)]
    desk.say(number, pcm)
    assert desk.finals(number)[0].text == text(0, 1, 2)


def test_streams_fed_unevenly_say_together_what_each_says_alone(model: SherpaStreams) -> None:
    sounds = [sound(*labels, lead_s=0.07 * i) for i, labels in enumerate(MELODIES)]
    alone = []
    for pcm in sounds:
        desk = Desk(model)
        number = desk.engine.open(LIVE)
        desk.say(number, pcm)
        alone.append(desk.finals(number))
    together = Desk(model)
    numbers = [together.engine.open(LIVE) for _ in sounds]
    for turn in range(max(map(len, sounds)) // 320 + 1):
        for i, (number, pcm) in enumerate(zip(numbers, sounds, strict=True)):
            step = 320 * (i + 1)
            if len(piece := pcm[turn * step : (turn + 1) * step]):
                together.engine.feed(number, piece, 0.0)
            if 0 < len(piece) < step:
                together.engine.finish(number, 0.0)
        if turn % 7 == 0:
            together.run()
    for number, pcm in zip(numbers, sounds, strict=True):
        if len(pcm) % (320 * (numbers.index(number) + 1)) == 0:
            together.engine.finish(number, 0.0)
    together.run()
    assert [together.finals(number) for number in numbers] == alone
    assert [finals[0].text for finals in alone] == [text(*labels) for labels in MELODIES]
    assert together.engine.chunks > 1.5 * together.engine.batches


def test_an_utterance_begins_anew_after_the_last(zipformer: SherpaStreams) -> None:
    desk = Desk(zipformer)
    number = desk.engine.open(LIVE)
    one, two = sound(0, 1), sound(1, 2)
    for pcm in (one, two):
        desk.engine.feed(number, pcm, 0.0)
        desk.engine.finish(number, 0.0)
    desk.run()
    first, second = desk.finals(number)
    assert (first.text, second.text) == (text(0, 1), text(1, 2))  # "re" is said again
    assert second.words[0].start_ms >= len(one) // 16
    assert [first.audio_ms, second.audio_ms] == [len(one) // 16, len(two) // 16]


def test_what_was_cancelled_is_not_told(zipformer: SherpaStreams) -> None:
    desk = Desk(zipformer)
    number = desk.engine.open(LIVE)
    desk.engine.feed(number, sound(6, 7), 0.0)
    desk.engine.cancel(number)
    desk.engine.cancel(number)
    desk.say(number, sound(0, 1))
    assert {event.text for event in desk.of(number)} <= {"", "do", "dore"}
    (final,) = desk.finals(number)
    assert final.text == "dore"
    assert final.words[0].start_ms >= len(sound(6, 7)) // 16


@pytest.mark.parametrize("samples", [0, 1, 100, 1600])
def test_an_utterance_with_hardly_any_sound_has_a_final(model: SherpaStreams, samples: int) -> None:
    desk = Desk(model)
    number = desk.engine.open(LIVE)
    desk.engine.feed(number, np.zeros(samples, np.int16), 0.0)
    desk.engine.finish(number, 0.0)
    desk.run()
    assert desk.of(number)[-1] == Final("", samples // 16, language="und")
    assert len(desk.finals(number)) == 1


def test_room_is_bounded_and_given_back(zipformer: SherpaStreams) -> None:
    desk = Desk(zipformer)
    numbers = [desk.engine.open(LIVE) for _ in range(6)]
    with pytest.raises(EngineOverloaded, match="streams"):
        desk.engine.open(LIVE)
    for _ in range(2):
        desk.engine.open(FILE)
    with pytest.raises(EngineOverloaded, match="files"):
        desk.engine.open(FILE)
    desk.engine.feed(numbers[0], sound(0), 0.0)
    desk.engine.close(numbers[0])
    desk.engine.close(numbers[0])
    desk.engine.open(LIVE)
    desk.run()
    assert desk.told == []


def test_a_file_has_no_partials_and_waits_while_others_speak_but_not_for_ever(
    zipformer: SherpaStreams,
) -> None:
    desk = Desk(zipformer, batch=1)
    file, caller = desk.engine.open(FILE), desk.engine.open(LIVE)
    desk.engine.feed(file, sound(0, 1), 0.0)
    desk.engine.feed(caller, sound(2, 3), 0.0)
    desk.engine.finish(file, 0.0)
    desk.engine.turn(lambda: 0.0)
    assert [number for number, _ in desk.told] == [caller]
    desk.engine.turn(lambda: 0.3)
    assert [number for number, _ in desk.told] == [caller]
    desk.run()
    assert [final.text for final in desk.of(file)] == [text(0, 1)]


def test_the_end_of_an_utterance_goes_first(zipformer: SherpaStreams) -> None:
    desk = Desk(zipformer, batch=1)
    numbers = [desk.engine.open(LIVE) for _ in range(3)]
    for number in numbers:
        desk.engine.feed(number, sound(0), 0.0)
    desk.engine.finish(numbers[2], 0.0)
    desk.engine.turn(lambda: 0.0)
    assert [number for number, _ in desk.told] == [numbers[2]]


def test_more_sound_than_may_wait_is_refused_and_none_of_it_added(
    zipformer: SherpaStreams,
) -> None:
    desk = Desk(zipformer)
    number = desk.engine.open(FILE)
    for _ in range(3):
        desk.engine.feed(number, np.zeros(60 * RATE_IN, np.int16), 0.0)
    with pytest.raises(AudioOverrun):
        desk.engine.feed(number, np.zeros(RATE_IN, np.int16), 0.0)
    desk.run()
    desk.say(number, sound(0))
    assert desk.finals(number)[0].audio_ms == 180_000 + len(sound(0)) // 16


def test_a_long_utterance_continues_in_the_next_final(
    model: SherpaStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LONG_PIECES", 6)
    labels = [0, 1, 2, 3] * 6
    pause = np.zeros(int(0.8 * RATE_IN), np.int16)
    parts = [part for i in range(0, len(labels), 8) for part in (sound(*labels[i : i + 8]), pause)]
    pcm = np.concatenate(parts)
    desk = Desk(model)
    number = desk.engine.open(LIVE)
    desk.say(number, pcm)
    finals = desk.finals(number)
    assert len([final for final in finals if final.text]) == 3
    assert [final.continues for final in finals] == [True] * (len(finals) - 1) + [False]
    assert " ".join(final.text for final in finals).strip() == text(*labels)
    assert sum(final.audio_ms for final in finals) == len(pcm) // 16
    starts = [word.start_ms for final in finals for word in final.words]
    wanted = [i * 600 + 800 * (i // 8) for i in range(0, len(labels), 2)]
    assert all(abs(a - b) <= 120 for a, b in zip(starts, wanted, strict=True)), (starts, wanted)


def test_speech_without_a_pause_is_cut_all_the_same(
    zipformer: SherpaStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LONG_PIECES", 4)
    monkeypatch.setattr(engine_module, "MAX_PIECES", 8)
    monkeypatch.setattr(tiny_sherpa, "PAUSE_S", 0.0)
    labels = [0, 1, 2, 3] * 10
    desk = Desk(zipformer)
    number = desk.engine.open(LIVE)
    desk.say(number, sound(*labels))
    finals = desk.finals(number)
    assert len(finals) > 2
    pieces = "".join(final.text.replace(" ", "") for final in finals)
    assert pieces == text(*labels).replace(" ", "")


def test_times_of_the_stages_are_told_to_who_asked(zipformer: SherpaStreams) -> None:
    desk = Desk(zipformer)
    number = desk.engine.open(StreamOptions(timing=True))
    other = desk.engine.open(LIVE)
    for each in (number, other):
        desk.engine.feed(each, sound(0)[:3200], 1.0)
        desk.engine.feed(each, sound(0)[3200:], 2.0)
    clock = iter([3.0, 4.0])
    desk.engine.turn(lambda: next(clock))
    assert [event.timing for event in desk.of(number)] == [Timing(1.0, 2.0, 3.0, 4.0)]
    assert [event.timing for event in desk.of(other)] == [None]


ACTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["feed", "feed", "finish", "cancel", "run"])),
    max_size=40,
)


@given(acts=ACTS)
@settings(max_examples=25)
def test_every_finished_utterance_has_one_final_with_all_its_words(
    zipformer: SherpaStreams, acts: list[tuple[int, str]]
) -> None:
    desk = Desk(zipformer)
    numbers = [desk.engine.open(options) for options in (LIVE, LIVE, FILE)]
    going: list[list[int]] = [[], [], []]
    expected: list[list[str]] = [[], [], []]
    for turn, (who, act) in enumerate([*acts, (0, "finish"), (1, "finish"), (2, "finish")]):
        if act == "feed":
            label = turn % 8
            if going[who] and going[who][-1] == label:
                label = (label + 1) % 8
            going[who].append(label)
            desk.engine.feed(numbers[who], sound(label), 0.0)
        elif act == "finish":
            expected[who].append(text(*going[who]))
            going[who] = []
            desk.engine.finish(numbers[who], 0.0)
        elif act == "cancel":
            going[who] = []
            desk.engine.cancel(numbers[who])
        else:
            desk.run()
    desk.run()
    found = [[final.text for final in desk.finals(number)] for number in numbers]
    assert found == expected


# --- options ---


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, SherpaOptions]:
    languages = {"auto": 0, "en-US": 1, "de-DE": 2, "fr": 3}
    folder = tiny_sherpa.nemo(tmp_path_factory.mktemp("nemo"), languages=languages)
    model = SherpaStreams(read_model(folder, str(folder)), 1)
    desk = Desk(model)
    return desk, SherpaOptions(desk.engine, model.model)


@pytest.mark.parametrize(
    ("language", "higher", "reported"),
    [(None, 0, "und"), ("en", 1, "en"), ("en-US", 1, "en"), ("en-GB", 1, "en"), ("de", 2, "de")],
)
def test_a_multilingual_model_is_told_the_language(
    several: tuple[Desk, SherpaOptions], language: str | None, higher: int, reported: str
) -> None:
    desk, options = several
    number = options.open(StreamOptions(language=language))
    desk.say(number, sound(0, 2, 4))
    (final,) = desk.finals(number)
    options.close(number)
    assert (final.text, final.language) == (text(*(higher + n for n in (0, 2, 4))), reported)


def test_a_language_that_the_model_has_not_is_refused(
    several: tuple[Desk, SherpaOptions], zipformer: SherpaStreams, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedRequest, match="hears de, en, fr, not 'it'"):
        several[1].open(StreamOptions(language="it"))
    named = tiny_sherpa.zipformer2(tmp_path / "streaming-zipformer-en-2023")
    english = SherpaOptions(Desk(zipformer).engine, read_model(named, str(named)))
    with pytest.raises(UnsupportedRequest, match="hears en, not 'de-DE'"):
        english.open(StreamOptions(language="de-DE"))
    english.open(StreamOptions(language="en-GB"))
    desk = Desk(zipformer)
    unknown = SherpaOptions(desk.engine, zipformer.model)
    number = unknown.open(StreamOptions(language="de"))
    unknown.finish(number, 0.0)
    assert desk.finals(number)[0].language == "de"  # as the operator says


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (AsrModels("x", final_model="y"), "no second model"),
        (AsrModels("x", aligner="y"), "no aligner"),
        (AsrModels("x", device="cuda"), "runs on the CPU"),
        (AsrModels("x", precision="int8"), "precision of the model's files"),
    ],
)
def test_settings_of_other_engines_are_refused(models: AsrModels, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        SherpaRecognizer(models)


# --- as a recognizer ---


@pytest.mark.parametrize("batch", ["N", 1])
async def test_a_recognizer_loads_measures_and_recognizes(tmp_path: Path, batch: int | str) -> None:
    """Also a model whose export has no batches."""
    folder = tiny_sherpa.zipformer2(tmp_path / "model-en", batch=batch)
    steps: list[float] = []
    recognizer = SherpaRecognizer(AsrModels(str(folder)), lambda done, what: steps.append(done))
    await recognizer.start()
    assert recognizer.languages == ("en",)
    try:
        streams = [await recognizer.open() for _ in range(3)]
        for stream, labels in zip(streams, MELODIES, strict=False):
            stream.feed(sound(*labels))
            stream.finish()
        for stream, labels in zip(streams, MELODIES, strict=False):
            async for event in stream.events():
                if isinstance(event, Final):
                    break
            assert (event.text, event.language) == (text(*labels), "en")
            await stream.close()
    finally:
        await recognizer.close()
    assert steps == sorted(steps)
    assert steps[-1] == 1.0


# --- words ---


def words(heard: str, pieces: Sequence[str]) -> Iterator[str]:
    starts = tuple(100 * i for i in range(len(pieces)))
    hypothesis = Hypothesis(heard, tuple(pieces), starts)
    return (word.text for word in hypothesis.words(40))


@pytest.mark.parametrize(
    ("heard", "pieces", "expected"),
    [
        ("hello world", (" he", "llo", " world"), ["hello", "world"]),
        ("hello world", (" ", "hello", " ", "world"), ["hello", "world"]),
        ("Zürich", (" Z", "<0xC3>", "<0xBC>", "rich"), ["Zürich"]),
        ("你好 world 吗", ("你", "好", " wor", "ld", "吗"), ["你", "好", "world", "吗"]),
        ("blå bær", ("▁ƌĩ", "Ė", "▁ĻĽ"), ["blå", "bær"]),  # byte-level pieces
        ("blå", ("▁ƌĩ", "▁Ė"), []),
        ("", (), []),
    ],
)
def test_pieces_become_words(heard: str, pieces: Sequence[str], expected: list[str]) -> None:
    assert list(words(heard, pieces)) == expected


def test_a_word_ends_with_its_last_piece() -> None:
    hypothesis = Hypothesis("hello world", (" he", "llo", " world"), (0, 200, 520))
    assert list(hypothesis.words(40)) == [Word("hello", 0, 240), Word("world", 520, 560)]


@pytest.mark.parametrize(
    ("heard", "stable"), [("", 0), ("hel", 0), ("hello wor", 6), ("你好", 2), ("say 你", 5)]
)
def test_the_last_word_is_not_stable_before_it_is_whole(heard: str, stable: int) -> None:
    assert Hypothesis(heard, (), ()).stable_chars == stable
