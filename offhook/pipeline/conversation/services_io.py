"""The speech engines as ordinary Pipecat services, usable in any Pipecat bot.

`OffhookSTT` is an STT service with its own turn detection, which it declares in its metadata as
Pipecat expects. `OffhookTTS` streams text into a synthesizer token by token and queues every word
behind its own audio.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    AggregatedTextFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    StartFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.utils.context.aggregated_frame_sequencer import (
    AggregatedFrameSequencer,
    _BufferedWord,
)
from pipecat.utils.time import time_now_iso8601

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.directed_io import Direction
from offhook.pipeline.conversation.transport_io import UtteranceStartedFrame
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController, UserTurnListener
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script_io import Speaker
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Synthesizer,
    SynthesizerStream,
    VoiceOptions,
)
from offhook.pipeline.speech.voice.speech_ahead_io import SpeechAhead

FRAME_QUEUE = 256
"""Maximum frames queued for a slow pipeline: beyond it partial transcripts are dropped first, then
the oldest frames."""
SEGMENT_CHARACTERS = 200
"""Maximum characters per sentence passed to Pipecat, whose cost per word grows with the sentence;
longer text is split between two words."""
PIECE_CHARACTERS = 100
"""Maximum characters handed on at once: longer text is handed on piece by piece, in turn with the
packets of all calls."""
_PIECE = re.compile(rf"(?s).{{1,{PIECE_CHARACTERS}}}(?:(?<=\s)|\Z)|.{{1,{PIECE_CHARACTERS}}}")
AHEAD_CHARACTERS = 10_000
"""Characters that a voice is given before it has spoken them, ten minutes. Whoever writes more has
to wait."""
SHOWN_CHARACTERS = 20
"""Characters of a text that the voice cannot say, in the log."""
REPLY_SILENCE_S = 1000
"""Seconds without audio after which Pipecat considers a reply ended; longer than a worker needs to
load, because the reply waits for it."""


class OffhookSTT(STTService, UserTurnListener):
    """Pushes the decisions of `UserTurnController` as Pipecat frames. The audio itself does not
    pass through Pipecat: the controller reads the leg directly."""

    def __init__(
        self,
        hearing: UserTurnController,
        direction: Direction | None,
        think_ahead: Callable[[str], None] = lambda text: None,
        **kwargs: Any,
    ) -> None:
        """`direction` is told of interruptions, `think_ahead` as `Agent.think_ahead`."""
        settings = STTSettings(model="offhook", language=None)
        super().__init__(ttfs_p99_latency=0.35, settings=settings, **kwargs)
        self._hearing = hearing
        self._direction = direction
        self._think_ahead = think_ahead
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue(FRAME_QUEUE)
        self._task: asyncio.Task[None] | None = None
        self._turn_open = False
        hearing.listener = self

    def service_metadata_frame(self) -> STTMetadataFrame:
        frame = super().service_metadata_frame()
        frame.user_turn_strategies = ExternalUserTurnStrategies(enable_interruptions=False)
        return frame

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._task = self.create_task(self._push_frames())

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._end()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._end()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._end()

    async def _end(self) -> None:
        if self._task is not None:
            await self.cancel_task(self._task)
            self._task = None

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield None  # UserTurnController reads the audio from the leg itself

    def queue(self, frame: Frame | None) -> None:
        """Queue a frame to be pushed after those before it; None is an interruption."""
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(frame)

    def on_keys(self) -> None:
        if not self._turn_open:
            self._turn_open = True
            self.queue(ProposedUserStartedSpeakingFrame())

    def on_words(self, text: str) -> None:
        self.on_keys()
        if self._frames.qsize() < FRAME_QUEUE // 2:
            self.queue(InterimTranscriptionFrame(text, "caller", time_now_iso8601()))

    def on_pause(self, text: str) -> None:
        self._think_ahead(text)

    def on_resume(self) -> None:
        self._think_ahead("")

    def on_commit(self, text: str) -> None:
        self.on_keys()
        self._turn_open = False
        final = TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=True)
        self.queue(final)
        self.queue(ProposedUserStoppedSpeakingFrame())

    def on_interrupt(self) -> None:
        self.queue(None)
        if self._direction is not None:
            self._direction.interrupted()

    async def _push_frames(self) -> None:
        while True:
            frame = await self._frames.get()
            if frame is None:
                await self.broadcast_interruption()
            else:
                await self.push_frame(frame)


@dataclass
class SpokenResponseStartFrame(LLMFullResponseStartFrame):
    """The start of a response that comes with speech of its own: its text is not synthesized."""

    speech: SynthesizerStream | None = None
    utterance: UtteranceStartedFrame | None = field(default=None, init=False)
    """The start of the speech, once it has text."""


@dataclass
class _Ahead:
    """The beginning of a reply that is spoken before it is certain to be said."""

    speech: SpeechAhead
    options: VoiceOptions
    running: asyncio.Task[None]
    characters: int = 0
    """Characters given to the voice."""


@dataclass
class _Reply:
    stream: SynthesizerStream
    complete: asyncio.Event
    """Set when the whole text of the reply has been written."""
    remote: bool = False
    """The speech comes from elsewhere, perhaps all of it before its last word is known."""
    speaking: asyncio.Task[None] | None = None
    ahead: _Ahead | None = None
    """What of the reply was spoken ahead."""
    failed: bool = False
    waiting: int = 0
    """Characters written and not spoken."""
    spoke: asyncio.Event = field(default_factory=asyncio.Event)
    """Something was spoken, or nothing more will be."""
    has_sound: bool = False
    unheard: str = ""
    """What the voice has passed over before its first sound, or since the last one."""
    written: str = ""
    """What was written before the first sound."""


class WordsInOrder(AggregatedFrameSequencer):
    """Pipecat's sequencer, extended for words spoken before their sentence is complete.

    Pipecat buffers such words and replays them once the sentence is complete, behind whatever is
    queued by then; words that arrive meanwhile are passed directly and so overtake them. Here the
    buffered words wait until the sentence itself has passed the queue, and later words wait with
    them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, streaming=True)
        self._under_way: Counter[str | None] = Counter()
        """Sentences in the queue per context id."""

    def process_word(
        self,
        word: str,
        pts: int,
        context_id: str | None,
        includes_inter_frame_spaces: bool = False,
    ) -> list[Frame]:
        if self._under_way[context_id]:
            waiting = _BufferedWord(word, pts, context_id, includes_inter_frame_spaces)
            self._buffered_words.append(waiting)
            return []
        return super().process_word(word, pts, context_id, includes_inter_frame_spaces)

    def sentence_passed(self, context_id: str | None) -> list[Frame]:
        """Mark one sentence of the context as passed and return the word frames that may now
        follow."""
        self._under_way[context_id] -= 1
        if self._under_way[context_id] > 0:
            return []
        del self._under_way[context_id]
        return super()._drain_buffered_words()

    def force_complete(self, context_id: str, last_word_pts: int) -> list[Frame]:
        del self._under_way[context_id]
        return super().force_complete(context_id, last_word_pts)

    def clear(self, *, keep_contexts: set[str] | None = None) -> None:
        super().clear(keep_contexts=keep_contexts)
        for context_id in self._under_way.keys() - (keep_contexts or set()):
            del self._under_way[context_id]

    def _promote(self, agg: Any, context_id: str, sc: Any) -> list[Frame]:
        frames = super()._promote(agg, context_id, sc)
        self._under_way[context_id] += len(frames)
        return frames

    def _drain_buffered_words(self) -> list[Frame]:
        return []


class OffhookTTS(TTSService):
    """A `Synthesizer` as a Pipecat service, one stream per reply. If the engine fails, the reply
    ends there and the call continues. Words count as spoken from the first sound of a reply."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        hearing: UserTurnController | None = None,
        options: VoiceOptions = DEFAULT_VOICE,
        on_unspoken: Callable[[str, bool], None] = lambda text, begun: None,
        lexicon: Lexicon = NO_LEXICON,
    ) -> None:
        """`on_unspoken` is called with a text of which the voice has made no sound, though it has
        letters or digits, such as one in a language that it does not speak; and with whether it
        has spoken the beginning of that reply."""
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_text_frames=False,
            push_stop_frames=True,
            stop_frame_timeout_s=REPLY_SILENCE_S,
            max_consecutive_zero_audio_contexts=0,  # a lost worker is restarted
            sample_rate=RATE_OUT,
            settings=TTSSettings(
                model=synthesizer.name, voice=options.voice or None, language=None
            ),
        )
        self._words = self._aggregated_frame_sequencer = WordsInOrder(str(self))
        self.speaker = Speaker(synthesizer, lexicon)
        self._hearing = hearing
        self.options = options
        """How the next reply is spoken."""
        self._on_unspoken = on_unspoken
        self._warns = True
        """Whether the first text without sound is still to be logged."""
        self._replies: dict[str, _Reply] = {}
        self._ahead: _Ahead | None = None
        """What may be the beginning of the next reply."""
        self._spoken: tuple[str | None, SpokenResponseStartFrame] | None = None
        """A response with speech of its own that has no text yet, and its context id."""

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        if context_id not in self._replies:
            await self.create_audio_context(context_id)
            started = UtteranceStartedFrame(context_id=context_id)
            await self.append_to_audio_context(context_id, started)
            reply = self._replies[context_id] = self._reply_for(context_id, started)
            reply.speaking = self.create_task(self._speak(reply, context_id), f"speak {context_id}")
        await self._write(self._replies[context_id], text)
        yield None

    async def _write(self, reply: _Reply, text: str) -> None:
        """Give the voice more text, once it has spoken enough of what it has."""
        assert reply.speaking is not None
        while reply.waiting > AHEAD_CHARACTERS and not (reply.failed or reply.speaking.done()):
            reply.spoke.clear()
            await reply.spoke.wait()
        if not reply.remote:
            reply.waiting += len(text)
        if not reply.has_sound:
            reply.written += text
        reply.stream.write(text)

    async def _speak_text(self, src_frame: AggregatedTextFrame, text: str, context_id: str) -> None:
        if len(text) <= PIECE_CHARACTERS:
            await super()._speak_text(src_frame, text, context_id)
            return
        for piece in _PIECE.findall(text):
            part = AggregatedTextFrame(piece, src_frame.text_type, raw_text=piece)
            part.interruptible = src_frame.interruptible
            await super()._speak_text(part, piece, context_id)
            await asyncio.sleep(0)

    def _is_remote(self, context_id: str) -> bool:
        """Whether the reply has speech of its own."""
        if context_id in self._replies:
            return self._replies[context_id].remote
        return self._spoken is not None and self._spoken[0] == context_id

    def _reply_for(self, context_id: str, started: UtteranceStartedFrame) -> _Reply:
        """Returns a reply with the response's own speech, with that which was spoken ahead, or
        opens a synthesizer."""
        if self._is_remote(context_id):
            assert self._spoken is not None
            response, self._spoken = self._spoken[1], None
            response.utterance = started
            assert response.speech is not None
            return _Reply(response.speech, asyncio.Event(), remote=True)
        ahead = self._ahead
        if ahead is not None and ahead.options == self.options:
            self._ahead = None
            return _Reply(ahead.speech, asyncio.Event(), ahead=ahead)
        return _Reply(self.speaker.open(self.options), asyncio.Event())

    # --- before it is certain what is said ---

    def speak_ahead(self, text: str, *, end: bool = False) -> None:
        """Has the voice prepare more of what is likely to be the next reply, unheard; with `end`,
        the last of it."""
        if self._ahead is None:
            speech = SpeechAhead(partial(self.speaker.open, self.options))
            running = self.create_task(speech.run(), "speak ahead")
            self._ahead = _Ahead(speech, self.options, running)
        self._ahead.characters += len(text)
        self._ahead.speech.expect(text, end=end)

    async def drop_ahead(self) -> int:
        """Drops what was prepared of a reply. Returns how many characters that were."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return 0
        await self._end_ahead(ahead)
        return ahead.characters

    async def _end_ahead(self, ahead: _Ahead) -> None:
        ahead.speech.cancel()
        await self.cancel_task(ahead.running)

    async def _register_spoken_text(
        self, src_frame: AggregatedTextFrame, text: str, context_id: str
    ) -> None:
        sequencer = self._aggregated_frame_sequencer
        if context_id in sequencer._streaming_contexts:
            sentence = sequencer._streaming_contexts[context_id].aggregator._tts
            between_words = text[:1].isspace() or sentence[-1:].isspace()
            if len(sentence) >= SEGMENT_CHARACTERS * (1 if between_words else 2):
                parted = await sequencer.finalize(context_id)
                await self._push_sequencer_frames(parted, context_id)
        await super()._register_spoken_text(src_frame, text, context_id)
        if self._is_remote(context_id):  # its words are due before the sentence is complete
            parted = await sequencer.finalize(context_id)
            await self._push_sequencer_frames(parted, context_id)

    async def _push_sequencer_frames(self, frames: list[Frame], context_id: str | None) -> None:
        is_queued = bool(context_id) and self.audio_context_available(context_id or "")
        await super()._push_sequencer_frames(frames, context_id)
        if not is_queued:
            for _ in frames:
                await self._push_word_frames(self._words.sentence_passed(context_id))

    async def _push_audio_context_item(self, context_id: str, item: Any, playback: Any) -> None:
        await super()._push_audio_context_item(context_id, item, playback)
        if isinstance(item, AggregatedTextFrame) and not isinstance(item, TTSTextFrame):
            await self._push_word_frames(self._words.sentence_passed(context_id))

    async def flush_audio(self, context_id: str | None = None) -> None:
        """End the text of the reply."""
        if context_id in self._replies:
            self._replies[context_id].stream.end()
            self._replies[context_id].complete.set()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        await self._drop(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        await self._drop(context_id)

    async def _drop(self, context_id: str) -> None:
        """Close the stream of a reply that Pipecat has ended."""
        reply = self._replies.pop(context_id, None)
        if reply is not None and reply.speaking is not None and not reply.speaking.done():
            reply.stream.cancel()
            await self.cancel_task(reply.speaking)
            reply.spoke.set()
        if reply is not None and reply.ahead is not None:
            await self._end_ahead(reply.ahead)

    async def _speak(self, reply: _Reply, context_id: str) -> None:
        samples = 0
        try:
            async for speech in reply.stream:
                if pcm := speech.pcm.tobytes():
                    self._stamp("tts_first_audio")
                    samples += len(speech.pcm)
                    frame = TTSAudioRawFrame(pcm, RATE_OUT, 1, context_id=context_id)
                    await self.append_to_audio_context(context_id, frame)
                reply.waiting -= len(speech.text)
                reply.spoke.set()
                has_sound = reply.has_sound and not (reply.unheard or speech.passed_over)
                reply.unheard += speech.text
                if has_sound or reply.remote or speech.pcm.any():
                    words = [(word, samples / RATE_OUT) for word in reply.unheard.split()]
                    reply.has_sound, reply.unheard, reply.written = True, "", ""
                    await self.add_word_timestamps(words, context_id)
            if reply.unheard or not (reply.has_sound or reply.remote):
                self._unspoken(reply)
        except EngineError as error:
            logger.error("a reply is cut short, its call goes on: {}", error)
            reply.failed = True
            reply.spoke.set()
            await reply.complete.wait()  # the rest of the reply is not spoken
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        await self.remove_audio_context(context_id)

    def _unspoken(self, reply: _Reply) -> None:
        """The voice has made no sound of a reply, or of its end, which so does not count as
        spoken."""
        reply.failed = True
        text = (reply.unheard or reply.written).strip()
        if not any(map(str.isalnum, text)):
            return
        if self._warns:
            self._warns = False
            name, shown = self.speaker.synthesizer.name, text[:SHOWN_CHARACTERS]
            logger.warning("the voice {} makes no sound of what it is to say: {}", name, shown)
        self._on_unspoken(text, reply.has_sound)

    async def _record_context_audio_outcome(self, context_id: str, received_audio: bool) -> None:
        """Reports nothing: `_unspoken` does, or what the engine has raised."""

    @property
    def silent_letters(self) -> int:
        """Letters and digits that the voice has passed over in a reply since its last sound."""
        return sum(sum(map(str.isalnum, reply.unheard)) for reply in self._replies.values())

    @property
    def has_begun(self) -> bool:
        """Whether there was sound of a reply that is being spoken."""
        return any(reply.has_sound for reply in self._replies.values())

    async def _apply_force_complete(self, context_id: str) -> None:
        # Pipecat counts words without a timestamp as spoken, but those of a failed reply were not.
        if (reply := self._replies.get(context_id)) is not None and reply.failed:
            others = {*self._replies} - {context_id}
            self._aggregated_frame_sequencer.clear(keep_contexts=others)
        else:
            await super()._apply_force_complete(context_id)

    async def cleanup(self) -> None:
        for context_id in tuple(self._replies):
            await self._drop(context_id)
        await self.drop_ahead()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMFullResponseStartFrame) and self._hearing is not None:
            self._hearing.reply.begin()
        elif isinstance(frame, LLMTextFrame) and self._hearing is not None:
            self._hearing.reply.written = True
            self._stamp("llm_first_token")
        await super().process_frame(frame, direction)
        if isinstance(frame, SpokenResponseStartFrame):
            self._spoken = (self._turn_context_id, frame)

    def _stamp(self, name: str) -> None:
        if self._hearing is not None:
            self._hearing.watch.stamp(name, monotonic())
