"""The speech engine: text of many streams in, their sound out, over one runner.

One thread owns it and calls `turn` again and again; nothing here waits. A turn takes in what the
device has finished and launches what is due:

- the next step, a little before the one under way ends: the device does not stand still, and text
  that comes until then is still in it;
- behind it the codec, for what has enough new frames, and for a stream's first frame at once. What
  came out of the step need not be known for that.

So it is known one step late that a segment is over: at most one frame is made for nothing.

Pages are taken when a segment begins, for all the frames its text may have, and a segment ends
where its pages do. So nobody waits for pages while he holds some, and whoever speaks comes to his
end; those who find none wait in the order of their deadlines. A stream that is cancelled gives slot
and pages back at once, though a frame of it may be under way: what is launched later is later on
the device.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.tts.launches import InFlightLaunches, StepFlight
from offhook.pipeline.engine.tts.messages import (
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
from offhook.pipeline.engine.tts.pieces import enough, is_due, whole
from offhook.pipeline.engine.tts.prompts import VoicePrompt
from offhook.pipeline.engine.tts.scheduler import NEW, Speaker, TtsScheduler
from offhook.pipeline.engine.tts.script import NOTHING, Script
from offhook.pipeline.engine.tts.segment_prefill import Begun, SegmentPrefill
from offhook.pipeline.engine.tts.streams import (
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
from offhook.pipeline.speech.recognizer import EngineFull

if TYPE_CHECKING:
    from offhook.pipeline.models.qwen3_tts.model import TtsConfig

PAUSE_LEAD = 0.2
PAUSE_GRACE = 0.12
"""s. Where a sentence is all there is, no text came for PAUSE_GRACE, and sound for PAUSE_LEAD is
left, the segment ends: else most of the sentence would not be spoken before more text comes, for
the model speaks long after it reads."""


class TtsEngine:
    """All methods are to be called by one thread; `tell` must not call any. Times are seconds of
    any one clock. Streams are known by a number, which is not used again; what is asked of one that
    has ended is ignored.
    """

    def __init__(
        self,
        runner: RunnerProtocol,
        config: "TtsConfig",
        cost: SpeechCost,
        tell: Callable[[EngineEvent], None],
        prefix_pages: int = 64,
    ) -> None:
        """`prefix_pages`: of the runner's, for the prefixes of voices; 8 at least."""
        self.counters = Counters()
        self._runner = runner
        self._config = config
        self._tell = tell
        self._scheduler = TtsScheduler(cost, runner.max_batch)
        self._flights = InFlightLaunches(cost)
        self._beginnings = SegmentPrefill(runner, prefix_pages)
        self._streams: dict[int, Stream] = {}
        self._numbers = 0
        self._free_slots = list(range(self._beginnings.slots, 0, -1))
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
        """A new stream; raises EngineFull. One that is not `live` gets what the others leave,
        and its sound comes as fast as it is made: give it little text at a time."""
        if not self._free_slots:
            raise EngineFull(f"{self._beginnings.slots} streams speak, the most there may be")
        self._numbers += 1
        script = Script(self._config.tts_eos, self._config.tts_pad)
        self._streams[self._numbers] = Stream(
            self._numbers, self._free_slots.pop(), voice, sampling, seed, live, script
        )
        self._beginnings.expect(voice)
        return self._numbers

    def write(self, number: int, tokens: Sequence[int], ends: Break, now: float) -> None:
        """The tokens of a word, and what ends with it. Raises tts_script.TextOverrun, taking
        none."""
        stream = self._streams.get(number)
        if stream is not None and not stream.script.ended:
            self._now = now
            stream.script.write(tokens, ends)
            self._go_on(stream)

    def end(self, number: int, now: float) -> None:
        """No more text will come."""
        stream = self._streams.get(number)
        if stream is not None:
            self._now = now
            stream.script.ended = True
            self._go_on(stream)

    def cancel(self, number: int) -> None:
        """Nothing more is told of it."""
        stream = self._streams.get(number)
        if stream is None:
            return
        segment = stream.segment
        if segment is not None:
            self._to_decode.pop(segment, None)
            self.counters.wasted_frames += segment.made - segment.told
        self._close(stream)

    def timer(self) -> float | None:
        """When `turn` should be called though nothing new was asked for."""
        times = [self._flights.look_at(self._now)]
        step_at = self._flights.step_at()
        if step_at is not None:
            due = self._now if self._beginnings.cold else self._scheduler.due()
            times.append(None if due is None else max(due, step_at))
        if self._pauses:
            times.append(self._pauses[0][0])
        return min((time for time in times if time is not None), default=None)

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def slots(self) -> int:
        return self._beginnings.slots

    @property
    def slots_left(self) -> int:
        return len(self._free_slots)

    @property
    def pages_left(self) -> int:
        return self._beginnings.pages_left

    # --- one turn ---

    def turn(self, now: float) -> bool:
        """Take in what is done and launch what is due; whether there was any of that."""
        self._now = now
        done = False
        while (steps := self._flights.next_step(now)) is not None:
            done = True
            self._collect_steps(steps)
        while (sounds := self._flights.next_sound()) is not None:
            done = True
            for (segment, first, count), pcm in zip(sounds.pieces, sounds.result(), strict=True):
                self._collect_sound(segment, first, count, pcm)
        self._end_pauses()
        for stream in self._beginnings.served():
            self._scheduler.want(stream)
        if self._is_due():
            done |= self._launch()
        if self._to_decode and self._flights.may_decode:
            done = True
            self._decode()
        return done

    def _is_due(self) -> bool:
        step_at = self._flights.step_at()
        if step_at is None or step_at > self._now:
            return False
        due = self._scheduler.due()
        return self._beginnings.cold or (due is not None and due <= self._now)

    def _launch(self) -> bool:
        """The next step, and what has to come before it; whether there was anything."""
        now = self._now
        self._steps, self._stepped, self._later = [], [], []
        self._sound_at = self._flights.sound_at(now, self._scheduler.step_ms(1))
        self._beginnings.compute_prefixes()
        self._scheduler.batch(now, self._step)
        rows = self._beginnings.launch()
        for stream in self._later:
            self._scheduler.want(stream)
        self._flights.launched_prefill(rows, now)
        if not self._steps:
            return rows > 0
        result = self._runner.step(self._steps)
        self.counters.steps += 1
        self.counters.frames += len(self._steps)
        spent = [segment for segment in self._stepped if not self._continues(segment)]
        ms = self._scheduler.step_ms(len(self._steps))
        self._flights.launched_step(result, self._steps, self._stepped, spent, now, ms)
        return True

    def _step(self, speaker: Speaker) -> bool:
        """The stream's next frame goes into the batch, if it can."""
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
        begun = self._beginnings.begin(stream)
        if begun is not Begun.YES:
            if begun is Begun.LATER:
                self._later.append(stream)
            return None
        stream.move(Event.BEGIN)
        segment = stream.segment = Segment(stream)
        stream.segments += 1
        self.counters.segments += 1
        return segment

    def _starve(self, stream: Stream, segment: Segment) -> None:
        """It has no text for its next frame."""
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
        """After a frame: see to its sound and to the next one. False: it may make no other."""
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
        """The codec for all that waits for it. What makes no more frames for now is decoded to its
        end, over several launches; what is over, in one, with whatever comes behind it."""
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
        self._flights.launched_sound(self._runner.decode(pieces), parts, self._now)

    # --- what came of it ---

    def _collect_steps(self, flight: StepFlight) -> None:
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
        """The frames before this one are the segment."""
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
        # The frame with the end had to be made.
        self.counters.wasted_frames -= 1
        self._over(segment, frame, reason)

    def _over(self, segment: Segment, length: int, reason: Reason) -> None:
        """Its first `length` frames count, and no more are made."""
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
            # As long as speech could not have come to the end of the text, silence is a pause.
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
        """So many more frames are there to be heard: from now on, or when those before are over."""
        stream = segment.stream
        over = stream.ends - (segment.made - segment.told) * FRAME_S
        if stream.awaited:
            stream.awaited = False
            stream.ends += self._now - over
        elif over < self._now:
            self.counters.late_frames += min(count, 1 + int((self._now - over) / FRAME_S))
            stream.ends += self._now - over

    def _drained(self, segment: Segment) -> None:
        """All of its sound was told."""
        stream = segment.stream
        assert segment.length is not None
        stream.frames += segment.length
        stream.segment = None
        stream.move(Event.DRAINED)
        self._go_on(stream)
        if stream.state is StreamState.IDLE:
            self._beginnings.release(stream)

    # --- between segments and frames ---

    def _go_on(self, stream: Stream) -> None:
        """There may be text for it, or it may be over."""
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
        """Sentences that no text came after."""
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
        self._beginnings.release(stream)
        self._free_slots.append(stream.slot)


def _under_way(segment: Segment) -> bool:
    return segment.length is None and segment.stream.segment is segment
