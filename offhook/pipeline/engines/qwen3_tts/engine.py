"""The Qwen3-TTS engine: turns the text of many streams into audio with one runner.

One thread owns it and calls `turn` repeatedly; nothing here blocks. A turn collects what the device
has finished and launches what is due:

- the next step, shortly before the running one ends, so that the device never idles and text that
  has arrived by then is still included;
- after it the codec, for streams with enough new frames, and at once for a stream's first frame.
  The step's result need not be known for that.

So the end of a segment is known one step late, and at most one frame per segment is wasted.

KV pages are allocated when a segment begins, for all frames that its text may need, and the segment
ends where its pages do. No stream waits for pages while holding some, so none can deadlock; streams
without pages wait in deadline order. Cancelling a stream frees its slot and pages at once even if a
frame is in flight, because later launches run later on the device.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.launches import InFlightLaunches, StepLaunch
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.script import NOTHING, Script
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PrefillResult, SegmentPrefill
from offhook.pipeline.engines.qwen3_tts.streams import (
    EARLY_ENDS,
    FEW_TOKENS,
    RAMP_FRAMES,
    Counters,
    Event,
    Segment,
    Stream,
    StreamState,
    frame_budget,
)
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_S,
    FRAME_SAMPLES,
    PIECE_FRAMES,
    Break,
    Ended,
    EngineEvent,
    Piece,
    Reason,
    RunnerProtocol,
    Sampling,
    SpeechCost,
    Spoken,
    Starved,
    Step,
)
from offhook.pipeline.engines.shared.synthesis.scheduler import (
    NEW,
    Speaker,
    TtsScheduler,
    enough,
    is_due,
    whole,
)
from offhook.pipeline.speech.errors import EngineOverloaded

if TYPE_CHECKING:
    from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig

PAUSE_LEAD = 0.2
PAUSE_GRACE = 0.12
"""Time in s without new text after which a segment of whole sentences ends, if at most PAUSE_LEAD
of audio is left. Otherwise the end of the sentence would stay unspoken until more text arrives,
because the model speaks well after it reads."""


class TtsEngine:
    """Synthesizes numbered streams. Call all methods from one thread; `tell` must not call any.
    Times are seconds of one monotonic clock. Numbers are not reused, and calls for an ended stream
    are ignored."""

    def __init__(
        self,
        runner: RunnerProtocol,
        config: "TtsConfig",
        cost: SpeechCost,
        tell: Callable[[EngineEvent], None],
        prefix_pages: int = 64,
    ) -> None:
        """`prefix_pages` is the number of the runner's pages for voice prefixes, at least 8."""
        self.counters = Counters()
        self._runner = runner
        self._config = config
        self._tell = tell
        self._scheduler = TtsScheduler(cost.steps, runner.max_batch)
        self._launches = InFlightLaunches(cost)
        self._prefill = SegmentPrefill(runner, prefix_pages)
        self._streams: dict[int, Stream] = {}
        self._numbers = 0
        self._free_slots = list(range(self._prefill.slots, 0, -1))
        self._to_decode: dict[Segment, None] = {}
        self._pauses: list[tuple[float, int, int, Stream]] = []
        self._now = 0.0
        # The batch being prepared:
        self._steps: list[Step] = []
        self._stepped: list[Segment] = []
        self._later: list[Stream] = []
        self._sound_at = 0.0

    # --- streams ---

    def open(self, voice: VoicePrompt, sampling: Sampling, seed: int, live: bool = True) -> int:
        """Opens a stream and returns its number. One that is not `live` uses spare capacity and is
        synthesized as fast as possible, so feed it little text at a time. Raises
        EngineOverloaded."""
        if not self._free_slots:
            raise EngineOverloaded(f"{self._prefill.slots} streams speak, the most there may be")
        self._numbers += 1
        script = Script(self._config.tts_eos, self._config.tts_pad)
        self._streams[self._numbers] = Stream(
            self._numbers, self._free_slots.pop(), voice, sampling, seed, live, script
        )
        self._prefill.expect(voice)
        return self._numbers

    def write(self, number: int, tokens: Sequence[int], ends: Break, now: float) -> None:
        """Adds the tokens of a word and what ends with it. Raises script.TextOverrun, adding
        none."""
        stream = self._streams.get(number)
        if stream is not None and not stream.script.ended:
            self._now = now
            stream.script.write(tokens, ends)
            self._go_on(stream)

    def end(self, number: int, now: float) -> None:
        """Marks the end of the stream's text."""
        stream = self._streams.get(number)
        if stream is not None:
            self._now = now
            stream.script.ended = True
            self._go_on(stream)

    def cancel(self, number: int) -> None:
        """Cancels the stream; no further events follow."""
        stream = self._streams.get(number)
        if stream is None:
            return
        segment = stream.segment
        if segment is not None:
            self._to_decode.pop(segment, None)
            self.counters.wasted_frames += segment.made - segment.told
        self._close(stream)

    def timer(self) -> float | None:
        """Returns when `turn` has work without further input, in s; None for never."""
        times = [self._launches.next_check(self._now)]
        step_at = self._launches.step_at()
        if step_at is not None:
            due = self._now if self._prefill.cold else self._scheduler.due()
            times.append(None if due is None else max(due, step_at))
        if self._pauses:
            times.append(self._pauses[0][0])
        return min((time for time in times if time is not None), default=None)

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def slots(self) -> int:
        return self._prefill.slots

    @property
    def slots_left(self) -> int:
        return len(self._free_slots)

    @property
    def pages_left(self) -> int:
        return self._prefill.pages_left

    # --- one turn ---

    def turn(self, now: float) -> bool:
        """Collects finished work, launches what is due, and returns whether there was any."""
        self._now = now
        done = False
        while (steps := self._launches.next_step(now)) is not None:
            done = True
            self._collect_steps(steps)
        while (sounds := self._launches.next_sound()) is not None:
            done = True
            for (segment, first, count), pcm in zip(sounds.pieces, sounds.result(), strict=True):
                self._collect_sound(segment, first, count, pcm)
        self._end_pauses()
        for stream in self._prefill.resumed():
            self._scheduler.want(stream)
        if self._is_due():
            done |= self._launch()
        if self._to_decode and self._launches.may_decode:
            done = True
            self._decode()
        return done

    def _is_due(self) -> bool:
        step_at = self._launches.step_at()
        if step_at is None or step_at > self._now:
            return False
        due = self._scheduler.due()
        return self._prefill.cold or (due is not None and due <= self._now)

    def _launch(self) -> bool:
        """Launches the next step and the prefills it needs; returns whether there was anything."""
        now = self._now
        self._steps, self._stepped, self._later = [], [], []
        self._sound_at = self._launches.sound_at(now, self._scheduler.step_ms(1))
        self._prefill.compute_prefixes()
        self._scheduler.batch(now, self._step)
        rows = self._prefill.launch()
        for stream in self._later:
            self._scheduler.want(stream)
        self._launches.launched_prefill(rows, now)
        if not self._steps:
            return rows > 0
        result = self._runner.step(self._steps)
        self.counters.steps += 1
        self.counters.frames += len(self._steps)
        spent = [segment for segment in self._stepped if not self._continues(segment)]
        ms = self._scheduler.step_ms(len(self._steps))
        self._launches.launched_step(result, self._steps, self._stepped, spent, now, ms)
        return True

    def _step(self, speaker: Speaker) -> bool:
        """Adds the stream's next frame to the batch and returns whether it could."""
        assert isinstance(speaker, Stream)
        stream = speaker
        segment = stream.segment
        if segment is None:
            segment = self._begin(stream)
            if segment is None:
                return False
        text = stream.script.next_token()
        if text == NOTHING:
            self._starve(stream, segment)
            return False
        frame = segment.frames
        self._steps.append(Step(segment.slot, text, frame, segment.start + frame))
        self._stepped.append(segment)
        segment.frames = frame + 1
        if stream.silent:
            stream.silent, stream.awaited = False, True
            stream.ends = self._sound_at
        stream.ends += FRAME_S
        return True

    def _begin(self, stream: Stream) -> Segment | None:
        begun = self._prefill.begin(stream)
        if begun is not PrefillResult.YES:
            if begun is PrefillResult.LATER:
                self._later.append(stream)
            return None
        stream.move(Event.BEGIN)
        segment = stream.segment = Segment(stream)
        stream.segments += 1
        self.counters.segments += 1
        return segment

    def _starve(self, stream: Stream, segment: Segment) -> None:
        """Handles a stream that has no text for its next frame."""
        stream.move(Event.STARVE)
        stream.starvations += 1
        if segment.frames > segment.decoded:
            self._to_decode[segment] = None
        if stream.live and stream.script.at_sentence_end:
            at = max(self._now + PAUSE_GRACE, stream.ends - PAUSE_LEAD)
            heappush(self._pauses, (at, stream.number, stream.starvations, stream))
        else:
            self._tell(Starved(stream.number))

    def _continues(self, segment: Segment) -> bool:
        """Queues the audio of a finished frame and the next frame; returns False if none may
        follow."""
        stream = segment.stream
        frames = segment.frames
        waiting = frames - segment.decoded
        if is_due(waiting, stream.ends - self._now, stream.live):
            self._to_decode[segment] = None
        if stream.ramping and segment.before + frames >= stream.ramp_end:
            stream.ramping = False
        script = stream.script
        if script.closed and frames >= frame_budget(script.tokens) + len(stream.voice.lead):
            stream.move(Event.SPEND)
            return False
        if frames - segment.told > self._runner.ring - PIECE_FRAMES[-1]:
            stream.move(Event.LAG)
        else:
            self._scheduler.want(stream)
        return True

    def _decode(self) -> None:
        """Launches the codec for pending frames. Streams that pause are decoded to the end over
        several launches, ended segments in one with whatever follows them."""
        pieces: list[Piece] = []
        parts: list[tuple[Segment, int, int]] = []
        rest: dict[Segment, None] = {}
        for segment in self._to_decode:
            over = segment.length is not None
            first = segment.decoded
            waiting = segment.made - first
            count = enough(waiting) if over else whole(waiting)
            pieces.append(Piece(segment.slot, first, count))
            parts.append((segment, first, count))
            segment.decoded = first + count
            if count < waiting and segment.stream.state is not StreamState.SPEAKING:
                rest[segment] = None
        self._to_decode = rest
        self._launches.launched_sound(self._runner.decode(pieces), parts, self._now)

    # --- what came of it ---

    def _collect_steps(self, flight: StepLaunch) -> None:
        codes = flight.result()
        end = self._config.codec_eos
        if end in codes:
            for code, step, segment in zip(codes, flight.steps, flight.segments, strict=True):
                if code == end and _under_way(segment):
                    self._model_ended(segment, step.frame)
        for segment in flight.spent:
            if _under_way(segment):
                self.counters.budget_ends += 1
                self._over(segment, segment.frames, Reason.BUDGET)

    def _model_ended(self, segment: Segment, frame: int) -> None:
        """Ends the segment before this frame."""
        stream = segment.stream
        script = stream.script
        said = script.after(frame)
        reason = Reason.SPOKEN
        stream.early = not script.closed or said < script.taken
        if stream.early:
            script.return_tokens(said)
            self.counters.early_ends += 1
            stream.early_ends += script.left > FEW_TOKENS
            if stream.early_ends > EARLY_ENDS:
                script.skip()
                reason = Reason.EARLY
        # The frame with the end had to be computed.
        self.counters.wasted_frames -= 1
        self._over(segment, frame, reason)

    def _over(self, segment: Segment, length: int, reason: Reason) -> None:
        """Ends the segment after its first `length` frames."""
        stream = segment.stream
        segment.length = length
        stream.reason = reason
        stream.ends -= (segment.frames - length) * FRAME_S
        self.counters.wasted_frames += segment.frames - length
        stream.move(Event.OVER)
        self._scheduler.drop(stream)
        self._to_decode.pop(segment, None)
        if segment.decoded < length:
            self._to_decode[segment] = None
        elif segment.told >= length:
            self._drained(segment)

    def _collect_sound(self, segment: Segment, first: int, count: int, pcm: Pcm) -> None:
        stream = segment.stream
        if stream.segment is not segment:
            return
        if segment.length is not None and first + count > segment.length:
            count = segment.length - first
            pcm = pcm[: count * FRAME_SAMPLES]
        if count > 0:
            if stream.live:
                self._pace(segment, count)
            segment.told = first + count
            tokens = stream.script.after(segment.told)
            self._tell(Spoken(stream.number, pcm, segment.before + first, tokens))
            # Until speech could have reached the end of the text, silence is a pause.
            spent = stream.script.spent and segment.told >= stream.script.tokens
            silent = stream.loudness.silent(pcm, count, spent)
            if silent and segment.length is None:
                self.counters.silence_ends += 1
                self._over(segment, segment.told, Reason.SILENCE)
                return
        if segment.length is not None:
            if segment.told >= segment.length:
                self._drained(segment)
        elif stream.state is StreamState.LAGGING:
            stream.move(Event.SOUND)
            self._scheduler.want(stream)

    def _pace(self, segment: Segment, count: int) -> None:
        """Extends the playout time of the stream by `count` frames."""
        stream = segment.stream
        over = stream.ends - (segment.made - segment.told) * FRAME_S
        if stream.awaited:
            stream.awaited = False
            stream.ends += self._now - over
        elif over < self._now:
            self.counters.late_frames += min(count, 1 + int((self._now - over) / FRAME_S))
            stream.ends += self._now - over

    def _drained(self, segment: Segment) -> None:
        """Completes a segment whose audio has all been delivered."""
        stream = segment.stream
        assert segment.length is not None
        stream.frames += segment.length
        stream.segment = None
        stream.move(Event.DRAINED)
        self._go_on(stream)
        if stream.state is StreamState.IDLE:
            self._prefill.release(stream)

    # --- between segments and frames ---

    def _go_on(self, stream: Stream) -> None:
        """Starts the next segment if there is text, or ends the stream."""
        script = stream.script
        if stream.state is StreamState.IDLE:
            too_little = stream.early and script.left <= FEW_TOKENS
            if script.ended and (too_little or not script.left):
                self._close(stream)
                self._tell(Ended(stream.number, stream.reason))
                return
            if too_little or not script.ready(stream.at_once, stream.voice.whole_text):
                return
        elif stream.state is not StreamState.STARVED:
            return
        stream.move(Event.TEXT)
        if not stream.segments:
            stream.ends = self._now + NEW
        elif stream.ends < self._now:
            stream.ends = self._now
            stream.silent = stream.ramping = True
            made = stream.segment.frames if stream.segment is not None else 0
            stream.ramp_end = stream.frames + made + RAMP_FRAMES
        self._scheduler.want(stream)

    def _end_pauses(self) -> None:
        """Ends segments whose sentence was followed by no more text."""
        while self._pauses and self._pauses[0][0] <= self._now:
            _, _, starvations, stream = heappop(self._pauses)
            if stream.state is StreamState.STARVED and stream.starvations == starvations:
                stream.script.close()
                self._go_on(stream)

    def _close(self, stream: Stream) -> None:
        stream.move(Event.CLOSE)
        stream.segment = None
        del self._streams[stream.number]
        self._scheduler.drop(stream)
        self._prefill.release(stream)
        self._free_slots.append(stream.slot)


def _under_way(segment: Segment) -> bool:
    return segment.length is None and segment.stream.segment is segment
