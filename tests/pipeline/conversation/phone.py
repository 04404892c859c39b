"""A telephone line and a call on it: turn detection, the pipeline and the voice are real, the
clock is the test's, and both ends of the line are at hand."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from time import monotonic
from typing import Any

import numpy as np
from aiohttp import web
from multidict import CIMultiDictProxy
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from yarl import URL

from benchmarks.servers.scripted import (
    ScriptedRecognizer,
    ScriptedRecognizerStream,
    ScriptedSynthesizer,
)
from offhook.media.leg import CallInfo, Leg, LegError
from offhook.media.pcm import SAMPLES_IN, Pcm
from offhook.pipeline.conversation.call_io import Agent, Call, Engines
from offhook.pipeline.conversation.events import Event
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Recognizer, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch
from tests.support.waiting import HANGS_S

COUNT = (
    "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty twenty one twenty two twenty three twenty four "
    "twenty five twenty six twenty seven twenty eight twenty nine thirty thirty one thirty two."
)
"""What an agent says who is interrupted: longer than a busy machine takes to notice it."""
FASTER = 0.001
"""Seconds for a tick of 20 ms."""


class PhoneLeg(Leg):
    """Hears what it is given; what is said, pressed and done to it is kept."""

    def __init__(self, info: CallInfo | None = None) -> None:
        super().__init__("phone")
        self.info = info or CallInfo(edge="sip", caller="+4930555123", called="100")
        self.sound: deque[Pcm] = deque()
        self.said = 0
        """Packets with sound in them."""
        self.pressed: list[str] = []
        self.done: list[str] = []
        self.transfer_takes: Callable[[], Awaitable[None]] | None = None
        """What a transfer does; None: this line cannot."""
        self.refuses = ""
        """Why it neither holds nor presses keys; empty: it does."""

    def _receive(self, now: float) -> Pcm:
        return self.sound.popleft() if self.sound else np.zeros(SAMPLES_IN, np.int16)

    def _send(self, said: Pcm | None, now: float) -> None:
        self.said += said is not None

    def feed(self, pcm: Pcm) -> None:
        whole = len(pcm) // SAMPLES_IN * SAMPLES_IN
        self.sound.extend(pcm[:whole].reshape(-1, SAMPLES_IN))

    def send_message(self, text: str) -> bool:
        return False

    def _may(self) -> None:
        if self.refuses:
            raise LegError(self.refuses)

    def send_dtmf(self, digits: str) -> None:
        self._may()
        self.pressed.append(digits)

    async def transfer(self, target: str) -> None:
        self.done.append(f"transfer {target}")
        if self.transfer_takes is None:
            return await super().transfer(target)
        await self.transfer_takes()

    async def hold(self) -> None:
        self._may()
        self.done.append("hold")

    async def resume(self) -> None:
        self._may()
        self.done.append("resume")

    async def hang_up(self, reason: str) -> None:
        if self.closed is None:
            self.done.append(f"hang up: {reason}")
        self.close(reason)


class Words(ScriptedRecognizer):
    """Understands these sentences, one an utterance."""

    def __init__(self, *sentences: str) -> None:
        self._sentences = iter(sentences)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "WordsStream":
        return WordsStream(self._sentences)


class WordsStream(ScriptedRecognizerStream):
    def __init__(self, sentences: Iterator[str]) -> None:
        super().__init__()
        self._sentences = sentences

    def finish(self) -> None:
        self._events.put_nowait(Final(next(self._sentences), self._ms))


class Answerer(FrameProcessor):
    """An agent that answers each turn with the next of its replies, and keeps the turns."""

    def __init__(self, *replies: str) -> None:
        super().__init__()
        self.replies = list(replies)
        self.turns: list[str] = []
        self.known: list[tuple[str, str]] = []
        """The conversation as it was last asked."""
        self.prompts = 0
        self.thinks_s = 0.0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame) or direction is FrameDirection.UPSTREAM:
            return await self.push_frame(frame, direction)
        last: Any = frame.context.messages[-1] if frame.context.messages else {}
        messages: list[Any] = list(frame.context.messages)
        self.known = [(message["role"], message["content"]) for message in messages]
        if last.get("role") == "user":
            self.turns.append(last["content"])
        if self.replies:
            reply = self.replies.pop(0)
            await self.push_frame(LLMFullResponseStartFrame())
            await asyncio.sleep(self.thinks_s)
            await self.push_frame(LLMTextFrame(reply))
            await self.push_frame(LLMFullResponseEndFrame())

    async def prompt(self) -> None:
        self.prompts += 1

    def agent(self) -> Agent:
        return Agent("answerer", self, on_idle=self.prompt)


class Phone:
    """A call in progress."""

    def __init__(self, leg: PhoneLeg, turn_detection: TurnDetection, call: Call) -> None:
        self.leg, self.call = leg, call
        self.events: list[Event] = []
        call.listeners.append(self.events.append)
        self._turn_detection = turn_detection
        self.running = asyncio.create_task(call.run())

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    async def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 20):
            await self._tick()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANGS_S):
            while not condition():
                await self._tick()

    async def while_doing(self, doing: Awaitable[object]) -> None:
        """The line's time goes on until it is done."""
        done = asyncio.ensure_future(doing)
        await self.until(done.done)
        await done

    async def _tick(self) -> None:
        self.leg.tick(monotonic())
        self._turn_detection.vad.run()
        await asyncio.sleep(FASTER)
        while self._turn_detection.vad._due:
            await asyncio.sleep(0)

    async def press(self, keys: str, every_ms: int = 200) -> None:
        for key in keys:
            self.leg.listener.on_dtmf(key)
            await self.pass_ms(every_ms)

    @property
    def speaking(self) -> bool:
        return self.leg.playout.speaking


@asynccontextmanager
async def phone_call(
    make_agent: Callable[[Call], Agent],
    leg: PhoneLeg | None = None,
    recognizer: Recognizer | None = None,
    synthesizer: Synthesizer | None = None,
    languages: Mapping[str, VoiceOptions] | None = None,
    before: Callable[[Call], None] = lambda call: None,
    **options: Any,
) -> AsyncIterator[Phone]:
    """A call that is up; whatever the test leaves of it is ended. `before` is called with the call
    before it runs."""
    leg = leg or PhoneLeg()
    turn_detection = TurnDetection(VadBatch(), SmartTurn())
    engines = Engines(
        *(turn_detection, recognizer or ScriptedRecognizer()),
        synthesizer or ScriptedSynthesizer(),
        speaking=next(iter((languages or {}).values()), DEFAULT_VOICE),
        languages=languages or {},
    )
    call = Call(leg, engines, make_agent, **options)
    before(call)
    phone = Phone(leg, turn_detection, call)
    nobody = leg.listener
    try:
        leg.connect()
        await phone.until(lambda: leg.listener is not nobody)  # the pipeline is up
        yield phone
    finally:
        leg.close("the test is over")
        await asyncio.wait_for(phone.running, HANGS_S)
        await engines.close()


# --- a language model ---


_NUMBERS = count()


def says(text: str) -> dict[str, Any]:
    return {"content": text}


def calls(name: str, /, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": 0, "id": f"call-{next(_NUMBERS)}", "function": function}]}


def completion(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer that is not streamed."""
    text = "".join(delta.get("content") or "" for delta in deltas)
    tools = [tool for delta in deltas for tool in delta.get("tool_calls", ())]
    message = {"role": "assistant", "content": text or None, "tool_calls": tools or None}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    about = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {**about, "choices": choices, "usage": usage}


def chunk(delta: dict[str, Any]) -> bytes:
    """An event of an answer's stream."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    about = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return b"data: " + json.dumps({**about, "choices": choices}).encode() + b"\n\n"


class Model:
    """An OpenAI-compatible endpoint that answers by a script: each answer is a list of deltas.
    After the last of them it misbehaves as `ill` says, or asks "And now?"."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.ill: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.on_last: Callable[[], Awaitable[None]] | None = None
        """Called when the last answer of the script is about to be given."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[CIMultiDictProxy[str]] = []
        self.urls: list[URL] = []
        self.refuses: Callable[[dict[str, Any]], web.Response | None] | None = None
        """Returns the error with which it answers a request that it does not take."""
        self.refused: list[dict[str, Any]] = []
        self.usage: dict[str, Any] | None = None
        """What it says that an answer took."""
        self.runner: web.AppRunner
        self.port = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.headers.append(request.headers)
        self.urls.append(request.rel_url)
        if self.refuses is not None and (error := self.refuses(asked)) is not None:
            self.refused.append(asked)
            return error
        self.requests.append(asked)
        if self.ill is not None and not self.answers:
            return await self.ill(request)
        if not self.requests[-1].get("stream"):
            return web.json_response(completion(self.answers.pop(0)))
        response = await stream(request)
        deltas = self.answers.pop(0) if self.answers else [says("And now?")]
        if not self.answers and self.on_last is not None:
            await self.on_last()
        for delta in deltas:
            await response.write(chunk(delta))
        if self.usage is not None:
            last = {"object": "chat.completion.chunk", "choices": [], "usage": self.usage}
            await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def results(self) -> list[Any]:
        """What its tools gave, as the last request tells it."""
        messages = self.requests[-1]["messages"]
        return [json.loads(m["content"]) for m in messages if m["role"] == "tool"]

    async def open(self) -> None:
        """Listen, on the same port as before."""
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    async def shut(self) -> None:
        """Refuse connections; answers in progress go on."""
        for site in tuple(self.runner.sites):
            await site.stop()


async def stream(request: web.Request) -> web.StreamResponse:
    """An answer that begins, on a connection that is not used again."""
    headers = {"Content-Type": "text/event-stream", "Connection": "close"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


@asynccontextmanager
async def model(*answers: list[dict[str, Any]]) -> AsyncIterator[Model]:
    made = Model(*answers)
    app = web.Application()
    app.router.add_post("/{base:.+}/chat/completions", made.answer)
    made.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await made.runner.setup()
    await made.open()
    made.url = f"http://127.0.0.1:{made.port}/v1"
    try:
        yield made
    finally:
        await made.runner.cleanup()
