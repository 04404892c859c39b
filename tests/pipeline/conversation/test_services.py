"""A voice as a Pipecat service: what goes downstream when it speaks, fails and is cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    ProposedUserStartedSpeakingFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.utils.text.base_text_aggregator import TextType
from pipecat.workers.runner import WorkerRunner

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.services_io import (
    FRAME_QUEUE,
    OffhookSTT,
    OffhookTTS,
    WordsInOrder,
)
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.script.lexicon import Lexicon
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions
from tests.pipeline.conversation.speller import EnglishOnly, Speller
from tests.support.waiting import until

SMALL = VoiceOptions("small")


class Ear(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)

    def count(self, kind: type[Frame]) -> int:
        return sum(isinstance(frame, kind) for frame in self.frames)

    @property
    def words(self) -> list[str]:
        return [frame.text for frame in self.frames if isinstance(frame, TTSTextFrame)]


@asynccontextmanager
async def speaking(
    voice: Synthesizer, options: VoiceOptions = SMALL, **more: Any
) -> AsyncIterator[tuple[PipelineWorker, Ear]]:
    ear = Ear()
    worker = PipelineWorker(
        Pipeline([OffhookTTS(voice, options=options, **more), ear]),
        params=PipelineParams(audio_out_sample_rate=RATE_OUT),
        idle_timeout_secs=None,
        cancel_on_idle_timeout=False,
    )
    runner = WorkerRunner(handle_sigint=False)
    running = asyncio.create_task(runner.run(auto_end=False))
    await runner.add_workers(worker)
    try:
        yield worker, ear
    finally:
        await worker.cancel()
        await runner.end()
        await running


async def say(worker: PipelineWorker, *tokens: str) -> None:
    await worker.queue_frame(LLMFullResponseStartFrame())
    for token in tokens:
        await worker.queue_frame(LLMTextFrame(token))
    await worker.queue_frame(LLMFullResponseEndFrame())


async def test_a_reply_is_spoken_with_its_words_behind_their_sound() -> None:
    voice = Speller()
    async with speaking(voice) as (worker, ear):
        await say(worker, "one ", "tw", "o")
        await until(lambda: ear.count(TTSStoppedFrame))
        assert ear.words == ["one", "two"]
        kinds = [type(f) for f in ear.frames if isinstance(f, (TTSAudioRawFrame, TTSTextFrame))]
        assert kinds == [*[TTSAudioRawFrame] * 3, TTSTextFrame] * 2
        assert voice.replies[0].options == SMALL


async def test_words_of_a_lexicon_are_spoken_otherwise_and_shown_as_written() -> None:
    lexicon = Lexicon.of_table({"Kia": "kee ah"})
    async with speaking(Speller(), lexicon=lexicon) as (worker, ear):
        await say(worker, "a K", "ia ", "is")
        await until(lambda: ear.count(TTSStoppedFrame))
        assert ear.words == ["a", "Kia", "is"]
        assert ear.count(TTSAudioRawFrame) == len("akeeahis")


async def test_a_reply_without_sound_is_not_spoken_and_reported_if_it_has_letters() -> None:
    unspoken: list[tuple[str, bool]] = []
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="WARNING", filter="offhook")
    replies = [("好 ", "的。"), ("🙂 ", "!"), ("да ",), ("— ", "so ", "да ", "be ", "it")]
    replies.append(("no ", "да 好"))

    def report(text: str, begun: bool) -> None:
        unspoken.append((text, begun))

    async with speaking(EnglishOnly(), on_unspoken=report) as (worker, ear):
        for reply in replies:
            before = ear.count(TTSStoppedFrame)
            await say(worker, *reply)
            await until(partial(lambda before: ear.count(TTSStoppedFrame) > before, before))
    logger.remove(sink)
    assert unspoken == [("好 的。", False), ("да", False), ("да 好", True)]
    assert ear.words == ["—", "so", "да", "be", "it", "no"]
    assert len([line for line in lines if "makes no sound" in line]) == 1


async def test_words_spoken_before_their_sentence_is_complete_stay_in_order() -> None:
    """Two are spoken when the sentence is complete, and a third waits in the queue before it."""
    queue: list[Frame | str] = []
    words = WordsInOrder("words")

    async def write(text: str) -> None:
        frame = AggregatedTextFrame(text, TextType.TOKEN)
        queue.extend(await words.register_spoken(frame, "reply", text, append_to_context=True))

    async def play() -> list[str]:
        played: list[Frame] = []
        while queue:
            if isinstance(item := queue.pop(0), str):
                played += words.process_word(item, 0, "reply")
            else:
                played += [item, *words.sentence_passed("reply")]
        return [frame.text for frame in played if isinstance(frame, TTSTextFrame)]

    await write("one two three")
    queue += ["one", "two"]
    assert await play() == []
    queue.append("three")
    await write(". Four ")
    queue.append("Four")
    assert await play() == ["one", "two", "three"]
    queue += await words.finalize("reply")
    assert await play() == ["Four"]


async def test_words_that_end_together_are_words_of_their_own() -> None:
    async with speaking(EspeakSynthesizer(), DEFAULT_VOICE) as (worker, ear):
        await say(worker, "Hello 😀 there.")
        await until(lambda: ear.count(TTSStoppedFrame))
        assert ear.words == ["Hello", "😀", "there."]


async def test_an_engine_that_fails_cuts_its_reply_and_the_call_goes_on() -> None:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="ERROR")
    voice = Speller()
    async with speaking(voice) as (worker, ear):
        await worker.queue_frame(LLMFullResponseStartFrame())
        await worker.queue_frame(LLMTextFrame("one "))
        await until(lambda: ear.count(TTSAudioRawFrame) == 3)
        voice.fault = EngineError("it has a cold")
        await worker.queue_frame(LLMTextFrame("two "))
        await until(lambda: lines)
        for token in ("three. ", "Four "):
            await worker.queue_frame(LLMTextFrame(token))
        await worker.queue_frame(LLMFullResponseEndFrame())
        await until(lambda: ear.count(TTSStoppedFrame) == 1)
        for _ in range(4):  # Pipecat would give a service up that was silent three times
            await say(worker, "nothing")
        await until(lambda: ear.count(TTSStoppedFrame) == 5)
        voice.fault = None
        await say(worker, "five")
        await until(lambda: ear.count(TTSStoppedFrame) == 6)
        assert ear.words == ["one", "five"]
        assert ear.count(TTSStartedFrame) == 6
    logger.remove(sink)
    assert sum("a reply is cut short, its call goes on: it has a cold" in x for x in lines) == 5


async def test_a_reply_that_is_cut_frees_the_engine() -> None:
    voice = Speller()
    voice.hold_after = 2
    async with speaking(voice) as (worker, ear):
        await say(worker, "one two")
        await until(lambda: ear.count(TTSAudioRawFrame) == 2)
        await worker.queue_frame(InterruptionFrame())
        await until(lambda: voice.replies[0].cancelled)
        voice.hold_after = None
        voice.may_speak.set()
        await say(worker, "three")
        await until(lambda: ear.words == ["three"])


async def test_partial_words_leave_room_for_what_may_not_be_lost() -> None:
    """A pipeline that reads nothing for a while."""
    hearing = SimpleNamespace(listener=None)
    ears = OffhookSTT(hearing, None)  # type: ignore[arg-type]
    for _ in range(FRAME_QUEUE):
        ears.on_words("and so on")
    for n in range(FRAME_QUEUE // 8):
        ears.on_commit(f"turn {n}")
    queued = [ears._frames.get_nowait() for _ in range(ears._frames.qsize())]
    assert isinstance(queued[0], ProposedUserStartedSpeakingFrame)
    finals = [frame.text for frame in queued if isinstance(frame, TranscriptionFrame)]
    assert finals[-1] == f"turn {FRAME_QUEUE // 8 - 1}"
    assert "turn 0" in finals
