"""A line as Pipecat's transport: words follow their sound, whatever interrupts it."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
from pipecat.audio.dtmf.types import KeypadEntry
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    ClientConnectedFrame,
    EndFrame,
    ErrorFrame,
    FunctionCallResultFrame,
    InputAudioRawFrame,
    InputDTMFFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    OutputAudioRawFrame,
    OutputDTMFFrame,
    OutputDTMFUrgentFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.dtmf_aggregator import DTMFAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from offhook.media.leg import Leg, LegError
from offhook.media.pcm import RATE_OUT, SAMPLES_IN, SAMPLES_OUT
from offhook.pipeline.conversation.transport_io import (
    FRAME_MS,
    MESSAGE_QUEUE,
    HeardFrame,
    LegTransport,
    TransportListener,
)
from tests.support.waiting import HANGS_S

PACKETS = 4
"""Packets of 20 ms that a word of these tests takes."""


class ScriptedLeg(Leg):
    """Hears a ramp; what it says and sends is kept; the test makes the ticks."""

    def __init__(self):
        super().__init__("scripted")
        self.sent, self.messages, self.pressed = [], [], []
        self.presses = True

    def _receive(self, now):
        return np.full(SAMPLES_IN, self.ticks, np.int16)

    def _send(self, said, now):
        if said is not None:
            self.sent.append(said)

    def send_dtmf(self, digits):
        if not self.presses:
            raise LegError("this line has no keys")
        self.pressed.append(digits)

    def send_message(self, text):
        self.messages.append(json.loads(text))
        return True


class Ear(FrameProcessor):
    """Keeps the frames that pass in one direction."""

    def __init__(self, direction):
        super().__init__()
        self._wanted = direction
        self.frames = []

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if direction is self._wanted:
            self.frames.append(frame)
        await self.push_frame(frame, direction)

    def of(self, *kinds):
        return [frame for frame in self.frames if isinstance(frame, kinds)]

    @property
    def words(self):
        return [frame.text for frame in self.of(TTSTextFrame)]


class Line:
    """A leg, its transport in a running pipeline, and ears at both ends of it."""

    def __init__(self, params, input_rate, processors=()):
        self.leg = ScriptedLeg()
        self.transport = LegTransport(self.leg, params)
        self.down, self.up = Ear(FrameDirection.DOWNSTREAM), Ear(FrameDirection.UPSTREAM)
        self.after_input = Ear(FrameDirection.DOWNSTREAM)
        self.told = []
        for name in ("on_client_connected", "on_client_disconnected", "on_app_message"):
            self.transport.add_event_handler(name, self._note(name))
        chain = [self.up, self.transport.input(), self.after_input, self.transport.output()]
        chain[2:2] = processors
        self.worker = PipelineWorker(
            Pipeline([*chain, self.down]),
            params=PipelineParams(audio_in_sample_rate=input_rate, audio_out_sample_rate=RATE_OUT),
            idle_timeout_secs=None,
            cancel_on_idle_timeout=False,
        )

    def _note(self, name):
        async def note(transport, *arguments):
            self.told.append((name, *arguments))

        return note

    async def say(self, *frames):
        for frame in frames:
            await self.worker.queue_frame(frame)
        await settled()

    async def tick(self, count=1):
        for _ in range(count):
            self.leg.tick(self.leg.ticks * 0.02)
            await settled()


async def settled():
    """Every task of the pipeline has had its turns: nothing here waits for time."""
    for _ in range(60):
        await asyncio.sleep(0)


@asynccontextmanager
async def line(input_rate=16_000, prepare=lambda leg: None, processors=(), **params):
    params = TransportParams(**{"audio_in_enabled": True, "audio_out_enabled": True, **params})
    made = Line(params, input_rate, processors)
    prepare(made.leg)
    runner = WorkerRunner(handle_sigint=False)
    running = asyncio.create_task(runner.run(auto_end=False))
    started = asyncio.Event()
    made.finished = asyncio.Event()
    made.worker.add_event_handler("on_pipeline_started", _set(started))
    made.worker.add_event_handler("on_pipeline_finished", _set(made.finished))
    await runner.add_workers(made.worker)
    try:
        await asyncio.wait_for(started.wait(), HANGS_S)
        await settled()
        yield made
    finally:
        await made.worker.cancel()
        await asyncio.wait_for(made.finished.wait(), HANGS_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _set(event):
    async def handler(*arguments):
        event.set()

    return handler


def sound(packets=PACKETS, rate=RATE_OUT):
    pcm = np.full(packets * rate // 50, 1000, np.int16)
    return TTSAudioRawFrame(pcm.tobytes(), rate, 1)


def word(text):
    return TTSTextFrame(text, "word")


def reply(*words):
    """A reply as our speech service hands it on: each word behind its sound."""
    frames = [LLMFullResponseStartFrame(), TTSStartedFrame()]
    for text in words:
        frames += [sound(), word(text)]
    return [*frames, TTSStoppedFrame(), LLMFullResponseEndFrame()]


# --- what is said ---


async def test_a_word_goes_on_when_its_last_sample_has_been_sent():
    async with line() as made:
        await made.say(*reply("hello", "world"))
        assert made.leg.playout.queued == 2 * PACKETS * SAMPLES_OUT
        heard = []
        for _ in range(2 * PACKETS):
            await made.tick()
            heard.append(list(made.down.words))
    assert heard == [[]] * (PACKETS - 1) + [["hello"]] * PACKETS + [["hello", "world"]]
    assert len(made.leg.sent) == 2 * PACKETS


async def test_speaking_starts_with_the_first_packet_and_stops_after_the_last():
    async with line() as made:
        spoken = []
        await made.say(*reply("hello"))
        for _ in range(PACKETS + 1):
            kinds = BotStartedSpeakingFrame, BotStoppedSpeakingFrame
            spoken.append(tuple(len(made.down.of(kind)) for kind in kinds))
            assert [len(made.up.of(kind)) for kind in kinds] == [*spoken[-1]]
            await made.tick()
        spoken.append(tuple(len(made.down.of(kind)) for kind in kinds))
    assert spoken == [(0, 0)] + [(1, 0)] * PACKETS + [(1, 1)]


async def test_a_reply_right_behind_another_has_a_first_packet_of_its_own():
    class Listener(TransportListener):
        def on_first_packet(self):
            firsts.append(made.leg.playout.sent)

    firsts = []
    async with line() as made:
        made.transport.listener = Listener()
        await made.say(*reply("wait"), *reply("hello"))
        for _ in range(2 * PACKETS + 2):
            await made.tick()
    assert (firsts[0], firsts[-1]) == (0, PACKETS * SAMPLES_OUT)


async def test_the_frames_of_a_reply_stay_in_their_order():
    async with line() as made:
        frames = reply("one", "two", "three")
        await made.say(*frames)
        await made.tick(3 * PACKETS + 1)
    kinds = (LLMFullResponseStartFrame, TTSStartedFrame, TTSTextFrame, TTSStoppedFrame)
    assert made.down.of(*kinds, LLMFullResponseEndFrame) == [
        frame for frame in frames if not isinstance(frame, TTSAudioRawFrame)
    ]


async def test_one_reply_after_another_is_said_to_its_end():
    """A second reply is queued while the first still plays, as after a function call."""
    async with line() as made:
        await made.say(*reply("let", "me", "see"), *reply("five", "o'clock"))
        await made.tick(5 * PACKETS + 2)
        said = made.transport.output().reply
        assert made.down.words == ["let", "me", "see", "five", "o'clock"]
        assert said.end() == ("", "")


async def test_the_reply_in_progress_knows_what_was_said():
    async with line() as made:
        await made.say(*reply("one", "two"), *reply("three"))
        await made.tick(2 * PACKETS + PACKETS // 2)
        assert made.transport.output().reply.end() == ("", "three")


async def test_silence_sends_nothing_on():
    async with line() as made:
        await made.tick(10)
        assert made.leg.sent == []
        assert made.down.of(BotStartedSpeakingFrame, TTSTextFrame) == []


# --- interruption ---


async def test_words_that_were_not_sent_never_go_on():
    async with line() as made:
        await made.say(*reply("hello", "big", "world"))
        await made.tick(PACKETS + 2)
        await made.say(InterruptionFrame())
        await made.tick(5 * PACKETS)
        assert made.down.words == ["hello"]
        order = made.down.of(TTSTextFrame, InterruptionFrame, BotStoppedSpeakingFrame)
        kinds = [TTSTextFrame, InterruptionFrame, BotStoppedSpeakingFrame]
        assert [type(frame) for frame in order] == kinds
        assert made.leg.playout.queued == 0
        assert len(made.leg.sent) <= PACKETS + 3  # and the fade


async def test_a_word_sent_just_before_the_interruption_is_in_the_context():
    async with line() as made:
        await made.say(*reply("hello", "world"))
        for _ in range(PACKETS):
            made.leg.tick(0.0)  # the pipeline has had no turn since
        await made.say(InterruptionFrame())
        order = made.down.of(TTSTextFrame, InterruptionFrame)
        assert [type(frame) for frame in order] == [TTSTextFrame, InterruptionFrame]


async def test_what_pipecat_calls_uninterruptible_survives():
    result = FunctionCallResultFrame("end_call", "1", {}, {"status": "ok"})
    async with line() as made:
        await made.say(*reply("hello"), result, word("never"))
        await made.tick(1)
        await made.say(InterruptionFrame())
        assert made.down.of(FunctionCallResultFrame) == [result]
        assert made.down.words == []


async def test_after_an_interruption_the_next_reply_is_said_whole():
    async with line() as made:
        await made.say(*reply("hello", "world"))
        await made.tick(PACKETS + 1)
        await made.say(InterruptionFrame())
        await made.say(*reply("yes", "please"))
        await made.tick(2 * PACKETS + 3)
        assert made.down.words == ["hello", "yes", "please"]
        assert len(made.down.of(BotStartedSpeakingFrame)) == 2
        assert len(made.down.of(BotStoppedSpeakingFrame)) == 2


# --- the end ---


async def test_the_end_waits_for_the_last_word():
    async with line() as made:
        await made.say(*reply("good", "bye"), EndFrame())
        await made.tick(PACKETS)
        assert not made.finished.is_set()
        assert made.down.of(EndFrame) == []
        for _ in range(PACKETS + 2):
            made.leg.tick(0.0)
            await asyncio.sleep(0.03)  # longer than the transport looks away
        await asyncio.wait_for(made.finished.wait(), HANGS_S)
        assert made.down.words == ["good", "bye"]
        order = made.down.of(TTSTextFrame, BotStoppedSpeakingFrame, EndFrame)
        kinds = [TTSTextFrame, TTSTextFrame, BotStoppedSpeakingFrame, EndFrame]
        assert [type(frame) for frame in order] == kinds


async def test_a_line_that_closed_ends_without_waiting():
    async with line() as made:
        await made.say(*reply("good", "bye"))
        made.leg.close("the caller hung up")
        await made.say(EndFrame())
        await asyncio.wait_for(made.finished.wait(), HANGS_S)
        assert made.down.words == []


# --- sound in and out ---


@pytest.mark.parametrize("rate", [8000, 16_000, 48_000])
async def test_what_is_heard_comes_in_coarse_frames_at_the_pipelines_rate(rate):
    async with line(input_rate=rate) as made:
        await made.tick(8 * FRAME_MS // 20)
        frames = made.after_input.of(InputAudioRawFrame)
        assert len(frames) == 8
        assert {frame.sample_rate for frame in frames} == {rate}
        samples = sum(len(frame.audio) // 2 for frame in frames)
        assert samples == pytest.approx(8 * FRAME_MS * rate // 1000, abs=rate // 500)


async def test_without_audio_in_nothing_comes():
    async with line(audio_in_enabled=False) as made:
        await made.tick(20)
        assert made.after_input.of(InputAudioRawFrame) == []


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 48_000])
async def test_sound_of_any_rate_is_as_long_as_it_was(rate):
    async with line() as made:
        for _ in range(10):
            await made.say(sound(5, rate))
        assert made.leg.playout.queued == pytest.approx(RATE_OUT, rel=0.01)


async def test_stereo_is_as_long_as_mono():
    async with line() as made:
        pcm = np.full(2 * SAMPLES_OUT, 1000, np.int16)
        await made.say(OutputAudioRawFrame(pcm.tobytes(), RATE_OUT, 2))
        assert made.leg.playout.queued == SAMPLES_OUT


async def test_a_very_long_frame_is_said_whole():
    """A whole jingle as one frame, longer than the playout holds."""
    async with line() as made:
        await made.say(sound(70 * 50), word("end"))
        for _ in range(8):
            for _ in range(500):
                made.leg.tick(0.0)
            await asyncio.sleep(0.11)
        assert made.down.words == ["end"]
        assert made.leg.playout.sent == 70 * RATE_OUT


# --- keys ---


async def test_a_key_reaches_the_pipeline_as_its_frame():
    async with line() as made:
        pressed = []
        made.transport.listener.on_key = pressed.append
        for key in "1*#A":
            made.leg.listener.on_dtmf(key)
        await settled()
        buttons = [frame.button for frame in made.after_input.of(InputDTMFFrame)]
    assert buttons == [KeypadEntry.ONE, KeypadEntry.STAR, KeypadEntry.POUND]  # Pipecat has no A
    assert pressed == list("1*#A")


async def test_a_stock_bot_gathers_keys_with_pipecats_own_aggregator():
    async with line(processors=[DTMFAggregator()]) as made:
        await made.say(*reply("please", "press"))
        await made.tick(PACKETS + 2)
        for key in "12#":
            made.leg.listener.on_dtmf(key)
        await settled()
        assert [f.text for f in made.after_input.of(TranscriptionFrame)] == ["DTMF: 12#"]
        assert made.leg.playout.queued == 0
        assert made.down.words == ["please"]


async def test_a_flood_of_keys_is_bounded():
    async with line() as made:
        for _ in range(MESSAGE_QUEUE + 50):
            made.leg.listener.on_dtmf("1")
        for _ in range(50):
            await settled()
        assert len(made.after_input.of(InputDTMFFrame)) == MESSAGE_QUEUE


async def test_keys_are_pressed_after_the_words_before_them():
    async with line() as made:
        await made.say(*reply("press"), OutputDTMFFrame.from_string("12#"))
        await made.tick(PACKETS - 1)
        assert made.leg.pressed == []
        await made.tick(1)
        assert made.leg.pressed == ["12#"]
        await made.say(*reply("words"), OutputDTMFUrgentFrame(KeypadEntry.NINE))
        assert made.leg.pressed == ["12#", "9"]


async def test_an_interruption_drops_keys_with_the_words_before_them():
    async with line() as made:
        await made.say(*reply("press"), OutputDTMFFrame.from_string("12#"))
        await made.tick(1)
        await made.say(InterruptionFrame())
        await made.tick(PACKETS)
        assert made.leg.pressed == []


async def test_a_line_without_keys_is_an_error_of_the_pipeline_and_no_end_of_the_call():
    async with line() as made:
        made.leg.presses = False
        await made.say(OutputDTMFFrame.from_string("1"), OutputDTMFUrgentFrame(KeypadEntry.TWO))
        await made.tick(1)
        errors = made.up.of(ErrorFrame)
        assert ["this line has no keys" in error.error for error in errors] == [True, True]
        await made.say(*reply("on"))
        await made.tick(PACKETS)
        assert made.down.words == ["on"]


async def test_who_asks_is_told_when_all_has_been_heard():
    async with line() as made:
        early, late = HeardFrame(), HeardFrame()
        await made.say(early)
        await made.tick(1)
        assert early.heard.is_set()
        await made.say(*reply("hello"), late)
        await made.tick(PACKETS)
        assert not late.heard.is_set()
        await made.tick(1)
        assert late.heard.is_set()
        assert len(made.up.of(BotStoppedSpeakingFrame)) == 1


# --- hold ---


async def test_on_hold_nothing_is_said_and_silence_is_heard():
    async with line() as made:
        await made.say(*reply("hello", "world"))
        await made.tick(PACKETS)
        made.leg.set_held(True)
        await made.tick(10 * FRAME_MS // 20)
        assert made.down.words == ["hello"]
        assert len(made.leg.sent) == PACKETS + 1  # and the fade
        frames = made.after_input.of(InputAudioRawFrame)
        assert len(frames) > 8
        assert not np.frombuffer(frames[-1].audio, np.int16).any()
        made.leg.set_held(False)
        await made.tick(PACKETS + 1)
        assert made.down.words == ["hello", "world"]


async def test_an_interruption_does_not_end_the_silence_on_hold():
    async with line() as made:
        made.leg.set_held(True)
        await made.say(*reply("hello"))
        await made.say(InterruptionFrame())
        await made.say(*reply("world"))
        await made.tick(2 * PACKETS)
        assert made.leg.sent == []
        made.leg.set_held(False)
        await made.tick(PACKETS + 1)
        assert made.down.words == ["world"]


async def test_a_line_that_comes_on_hold_stays_silent_at_first():
    async with line(prepare=lambda leg: leg.set_held(True)) as made:
        await made.say(*reply("hello"))
        await made.tick(PACKETS)
        assert made.leg.sent == []


# --- messages and the life of the line ---


async def test_a_message_reaches_the_pipeline_and_the_bot():
    message = {"label": "rtvi-ai", "type": "send-text", "id": "1", "data": {"content": "hi"}}
    async with line() as made:
        made.leg.listener.on_message(json.dumps(message))
        await settled()
        assert [f.message for f in made.after_input.of(InputTransportMessageFrame)] == [message]
        assert ("on_app_message", message, "scripted") in made.told


@pytest.mark.parametrize("text", ["{", "", "[1]", "null", '"x"', "[" * 100_000, "9" * 5000, "\x00"])
async def test_what_is_no_json_object_is_answered_with_an_error(text):
    async with line() as made:
        made.leg.listener.on_message(text)
        await settled()
        (answer,) = made.leg.messages
        assert (answer["label"], answer["type"]) == ("rtvi-ai", "error")
        assert "not JSON" in answer["data"]["error"]
        assert answer["data"]["fatal"] is False
        assert made.after_input.of(InputTransportMessageFrame) == []


async def test_a_flood_of_messages_is_bounded_and_said_so():
    async with line() as made:
        for number in range(MESSAGE_QUEUE + 50):
            made.leg.listener.on_message(json.dumps({"number": number}))
        refused = [m for m in made.leg.messages if "too many" in m["data"]["error"]]
        assert len(refused) == 50
        for _ in range(50):
            await settled()
        frames = made.after_input.of(InputTransportMessageFrame)
        assert [f.message["number"] for f in frames] == list(range(MESSAGE_QUEUE))


async def test_a_flood_does_not_hide_that_the_caller_left():
    async with line() as made:
        for _ in range(MESSAGE_QUEUE + 1):
            made.leg.listener.on_message("{}")
        made.leg.close("the caller hung up")
        for _ in range(50):
            await settled()
        assert made.told[-1][0] == "on_client_disconnected"


async def test_messages_of_the_bot_go_to_the_caller():
    async with line() as made:
        await made.say(OutputTransportMessageUrgentFrame(message={"a": 1}))
        await made.say(OutputTransportMessageFrame(message={"b": "ü"}))
        await made.tick(1)
        await settled()
        assert {"a": 1} in made.leg.messages
        assert {"b": "ü"} in made.leg.messages


async def test_the_life_of_the_line_is_told_in_order():
    async with line() as made:
        assert made.told == []
        made.leg.connect()
        made.leg.listener.on_message('{"n": 1}')
        made.leg.close("gone")
        for _ in range(5):
            await settled()
        events = [event for event, *_ in made.told]
        assert events == ["on_client_connected", "on_app_message", "on_client_disconnected"]
        assert made.told[0][1] is made.leg
        assert len(made.after_input.of(ClientConnectedFrame)) == 1


async def test_a_line_that_came_up_and_went_before_the_pipeline_is_told_all_the_same():
    def early(leg):
        leg.connect()
        leg.close("gone")

    async with line(prepare=early) as made:
        await settled()
        assert [e for e, *_ in made.told] == ["on_client_connected", "on_client_disconnected"]
