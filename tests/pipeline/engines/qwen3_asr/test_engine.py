"""The engine on a tiny model: what comes out does not hang on how the sound came in, nor on who
else is heard, nor on what is still in the cache."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.qwen3_asr import hypothesis  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.hypothesis import MAX_PREFIX_TOKENS  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.passes import Pass  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.runner import Runner  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.scheduler import Cost  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.windows import MAX_PENDING  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.tokenizer import Tokenizer  # noqa: E402
from offhook.pipeline.speech.errors import AudioOverrun  # noqa: E402
from offhook.pipeline.speech.streams.transcript import repeats  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

STREAMS, FILES, PAGES = 6, 2, 200
CONFIG = replace(tiny.CONFIG, decoder=replace(tiny.CONFIG.decoder, tied=False))


class Ids(Tokenizer):
    """Text that shows every token, so that no difference is lost in decoding."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("<asr_text>" if i == self.asr_text else f" {i}" for i in ids)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(random_weights(3), STREAMS + FILES, PAGES)


def random_weights(seed: int) -> Qwen3Asr:
    """So large that the text hangs on the sound and on every token before, and that it ends before
    it is too long for the prompt."""
    torch.set_num_threads(1)
    model = random_model(CONFIG, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.3, generator=generator)
    model.decoder.head.data[list(CONFIG.eos_ids)] *= 2
    return model


def sound(seconds: float, seed: int) -> Pcm:
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * 16000)) / 16000
    tone = np.sin(2 * np.pi * (200 + 150 * np.sin(t * (1 + seed % 5))) * t)
    loud = 2000 + 4000 * np.abs(np.sin(t * 1.7 + seed))
    pcm: Pcm = (tone * loud + rng.standard_normal(len(t)) * 300).astype(np.int16)
    return pcm


class Heard:
    """An engine whose clock stands still, and what it said."""

    def __init__(self, runner: Runner, pages: int = PAGES, most_batch: int = 8) -> None:
        self.said: list[TextUpdate] = []
        cost = Cost(4.0, 0.001, 0.002)
        tokenizer = Ids(tiny.tokenizer())
        self.engine = AsrEngine(
            runner, tokenizer, pages, cost, STREAMS, FILES, most_batch, 4096, self.said.append
        )

    def run(self) -> None:
        while self.engine.turn(lambda: 0.0):
            pass

    def final(self, stream: int) -> str:
        (text,) = [s.heard.text for s in self.said if s.stream == stream and s.final]
        return text


def in_pieces(runner: Runner, pcm: Pcm, cuts: Sequence[int]) -> str:
    """The final text of an utterance that came in pieces, each heard before the next came."""
    heard = Heard(runner)
    stream = heard.engine.open(update_ms=80)
    for a, b in pairwise([0, *sorted(min(c, len(pcm)) for c in cuts), len(pcm)]):
        heard.engine.feed(stream, pcm[a:b], 0.0)
        heard.run()
    heard.engine.finish(stream, 0.0)
    heard.run()
    return heard.final(stream)


def at_once(runner: Runner, pcm: Pcm) -> str:
    """The final text of an utterance that was there from the beginning."""
    heard = Heard(runner)
    stream = heard.engine.open()
    heard.engine.feed(stream, pcm, 0.0)
    heard.engine.finish(stream, 0.0)
    heard.run()
    return heard.final(stream)


def test_the_model_listens(runner: Runner) -> None:
    """Or no test here could fail."""
    texts = {at_once(runner, sound(seconds, seed)) for seconds in (0.7, 3, 9) for seed in range(3)}
    assert len(texts) >= 6


@pytest.mark.slow
@settings(max_examples=12)
@given(st.floats(0.3, 20.0), st.integers(0, 99), st.lists(st.integers(0, 16000 * 20), max_size=8))
@example(13.0, 6, [99_880, 192_840])
@example(7.0, 34, [41_160])
def test_the_text_does_not_hang_on_the_pieces(
    runner: Runner, seconds: float, seed: int, cuts: list[int]
) -> None:
    """Unless it was cut: of a loop a copy stays, and what is too long for the prompt is forced."""
    pcm, was_cut = sound(seconds, seed), False

    def find_loop(tokens: Sequence[int]) -> int | None:
        nonlocal was_cut
        keep = repeats(tokens)
        was_cut |= keep is not None or len(tokens) > MAX_PREFIX_TOKENS
        return keep

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hypothesis, "repeats", find_loop)
        text, whole = in_pieces(runner, pcm, cuts), at_once(runner, pcm)
    assert text == whole or was_cut


def test_streams_heard_together_hear_what_each_hears_alone(runner: Runner) -> None:
    sounds = [sound(1.0 + i, i) for i in range(STREAMS)]
    heard = Heard(runner)
    streams = [heard.engine.open(update_ms=80 + 60 * i) for i in range(STREAMS)]
    for at in range(0, max(map(len, sounds)), 3000):
        for stream, pcm in zip(streams, sounds, strict=True):
            if at < len(pcm):
                heard.engine.feed(stream, pcm[at : at + 3000], 0.0)
            elif at - 3000 < len(pcm):
                heard.engine.finish(stream, 0.0)
        heard.run()
    for stream in streams:
        if not any(s.final for s in heard.said if s.stream == stream):
            heard.engine.finish(stream, 0.0)
    heard.run()
    for stream, pcm in zip(streams, sounds, strict=True):
        assert heard.final(stream) == at_once(runner, pcm)


def test_the_end_of_a_turn_joins_the_batch_that_was_encoded_ahead(runner: Runner) -> None:
    sounds = [sound(1.0, i) for i in range(STREAMS)]
    heard = Heard(runner, most_batch=STREAMS - 1)
    streams = [heard.engine.open() for _ in sounds]
    for stream, pcm in zip(streams, sounds, strict=True):
        heard.engine.feed(stream, pcm[:8000], 0.0)
    heard.engine.turn(lambda: 0.0)  # all but the last, which is encoded ahead
    ended = streams[0]
    heard.engine.feed(ended, sounds[0][8000:], 0.0)
    heard.engine.finish(ended, 0.0)
    before = len(heard.said)
    heard.engine.turn(lambda: 0.0)
    told = {(text.stream, text.final) for text in heard.said[before:]}
    assert told == {(streams[-1], False), (ended, True)}
    assert heard.final(ended) == at_once(runner, sounds[0])


@pytest.mark.parametrize(
    ("seconds", "more"), [(1.0, 0.5), (1.0, 0.0), (7.5, 1.0), (8.0, 0.3), (15.5, 0.7), (9.0, 7.9)]
)
def test_an_end_of_turn_takes_the_place_of_its_update_that_was_encoded_ahead(
    runner: Runner, seconds: float, more: float
) -> None:
    pcm, other = sound(seconds + more, 4), sound(1.0, 5)
    said, other_said = at_once(runner, pcm), at_once(runner, other)
    cut = int(seconds * 16000)
    heard = Heard(runner, most_batch=1)
    first, ended = heard.engine.open(), heard.engine.open()
    heard.engine.feed(first, other, 0.0)
    heard.engine.feed(ended, pcm[:cut], 0.0)
    heard.engine.turn(lambda: 0.0)  # of the first; the other's update is encoded ahead
    assert [text.stream for text in heard.said] == [first]
    heard.engine.feed(ended, pcm[cut:], 0.0)
    heard.engine.finish(ended, 0.0)
    heard.engine.turn(lambda: 0.0)
    assert [text.samples for text in heard.said if text.stream == ended] == [len(pcm)]
    heard.run()  # a long text needs more steps than one batch has
    assert heard.final(ended) == said
    heard.engine.feed(ended, other, 0.0)  # the next utterance
    heard.engine.finish(ended, 0.0)
    heard.engine.finish(first, 0.0)
    heard.run()
    *_, next_text = [text.heard.text for text in heard.said if text.stream == ended and text.final]
    assert next_text == heard.final(first) == other_said


STEPS = st.tuples(st.integers(0, 2), st.sampled_from(["feed", "end", "turn"]), st.integers(1, 24))


@settings(max_examples=4)
@given(st.lists(STEPS, min_size=10, max_size=50), st.integers(1, 3))
@pytest.mark.slow
def test_whenever_turns_end_each_is_heard_as_if_alone(
    runner: Runner, steps: list[tuple[int, str, int]], most_batch: int
) -> None:
    heard = Heard(runner, most_batch=most_batch)
    streams = [heard.engine.open(update_ms=80) for _ in range(3)]
    sounds = [sound(90.0, seed) for seed in range(3)]
    begun, fed = [0, 0, 0], [0, 0, 0]  # samples: of the utterance's beginning, and so far
    ended: list[list[Pcm]] = [[], [], []]

    def end(who: int) -> None:
        if fed[who] > begun[who]:
            heard.engine.finish(streams[who], 0.0)
            ended[who].append(sounds[who][begun[who] : fed[who]])
            begun[who] = fed[who]

    for who, what, size in steps:
        if what == "feed":
            piece = sounds[who][fed[who] : fed[who] + 1000 * size]
            heard.engine.feed(streams[who], piece, 0.0)
            fed[who] += len(piece)
        elif what == "end":
            end(who)
        else:
            heard.engine.turn(lambda: 0.0)
    for who in range(3):
        end(who)
    heard.run()
    for who, stream in enumerate(streams):
        said = [text.heard.text for text in heard.said if text.stream == stream and text.final]
        assert said == [at_once(runner, pcm) for pcm in ended[who]]


def test_a_file_hears_what_a_caller_hears_though_its_pages_were_taken(runner: Runner) -> None:
    pcm = sound(27.0, 5)
    heard = Heard(runner, pages=16)  # not enough for both
    file, caller = heard.engine.open(live=False), heard.engine.open()
    heard.engine.feed(file, pcm, 0.0)
    heard.engine.turn(lambda: 0.0)
    heard.engine.feed(caller, sound(25.0, 6), 0.0)
    heard.engine.finish(file, 0.0)
    heard.engine.finish(caller, 0.0)
    heard.run()
    heard.engine.turn(lambda: 10.0)  # an evicted file waits a little
    while heard.engine.turn(lambda: 10.0):
        pass
    assert heard.final(caller) == at_once(runner, sound(25.0, 6))
    assert heard.final(file) == at_once(runner, pcm)


def test_who_speaks_does_not_share_the_device_with_a_file_that_is_heard_ahead(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is heard while a live update is read is not a file, which is heard after it."""
    heard = Heard(runner)
    heard_when_told: list[int] = []
    encode = Runner.encode

    def counted(runner: Runner, passes: Sequence[Pass]) -> None:
        heard_when_told.append(len(heard.said))
        encode(runner, passes)

    monkeypatch.setattr(Runner, "encode", counted)
    stream, file = heard.engine.open(), heard.engine.open(live=False)
    heard.engine.feed(file, sound(27.0, 5), 0.0)
    for seed in range(2):  # the file rides along with the first, and has to wait a little then
        heard.engine.feed(stream, sound(0.4, seed), 0.0)
        heard_when_told.clear()
        assert heard.engine.turn(lambda: 0.0)
    assert heard_when_told == [1]  # the live update's own
    assert len(heard.said) == 2
    while heard.engine.turn(lambda: 10.0):
        pass
    assert len(heard_when_told) > 1


def test_half_a_minute_at_once_is_heard_as_in_pieces(runner: Runner) -> None:
    """More than the device keeps of mel and stem."""
    pcm = sound(29.0, 5)
    text = in_pieces(runner, pcm, range(0, len(pcm), 128_000))
    heard = runner._heard.clone()
    assert at_once(runner, pcm) == text
    assert torch.allclose(runner._heard, heard, atol=1e-4)


def test_too_much_sound_at_once_is_refused_and_nobody_else_minds(runner: Runner) -> None:
    heard = Heard(runner)
    fast, file, other = heard.engine.open(), heard.engine.open(live=False), heard.engine.open()
    minute = np.zeros(MAX_PENDING, np.int16)
    heard.engine.feed(other, sound(2.0, 1), 0.0)
    heard.engine.feed(fast, minute[:8000], 0.0)
    heard.engine.finish(fast, 0.0)
    heard.engine.feed(fast, minute, 0.0)  # waits for the utterance before it
    heard.engine.feed(file, minute, 0.0)
    for stream in (fast, file):
        with pytest.raises(AudioOverrun):
            heard.engine.feed(stream, minute[:1], 0.0)
    heard.engine.finish(other, 0.0)
    heard.engine.finish(fast, 0.0)
    heard.run()
    assert heard.final(other) == at_once(runner, sound(2.0, 1))
    assert [s.heard.audio_ms for s in heard.said if s.stream == fast and s.final] == [500, 60_000]


@pytest.mark.slow
def test_an_endless_utterance_keeps_its_bounds(runner: Runner) -> None:
    heard = Heard(runner)
    stream = heard.engine.open(update_ms=400)
    kept = []
    for second in range(90):
        heard.engine.feed(stream, sound(1.0, second), 0.0)
        heard.run()
        kept.append(PAGES - 1 - heard.engine.pages_left)
    assert max(kept[40:]) <= max(kept[:40])
    texts = [s.heard for s in heard.said]
    for before, after in pairwise(texts):
        assert after.text.startswith(before.text[: before.stable_chars])
    heard.engine.close(stream)
    assert heard.engine.pages_left == PAGES - 1
