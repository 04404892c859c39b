"""Spoiled events of the Realtime protocol, while a call does what calls do: speech begins and ends,
responses are generated, played and interrupted.

`receive` must not raise. An event that is refused gets one error and changes nothing; what is sent
is JSON; and what a conversation keeps has a bound.
"""

import base64
import json
import random
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Partial
from offhook.web.realtime.conversation.actions import (
    Close,
    CommitAudio,
    Generate,
    ListMcpTools,
    McpCall,
    Send,
)
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.items import MAX_ITEMS
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.realtime.protocol.frozen import FrozenFields
from offhook.web.realtime.protocol.items import McpListedTool, McpToolError
from offhook.web.realtime.protocol.response_object import Usage
from offhook.web.realtime.transcription.session import RealtimeSession
from offhook.web.realtime.transcription.session import Send as SendToTranscriber
from tests.fuzz.damage import damage
from tests.fuzz.leftovers import sizes
from tests.fuzz.result import Result, collecting, resident_kb

EVENTS = 300
"""Of one conversation; of one in LONG_ONE, LONG."""
LONG, LONG_ONE = 3000, 50
MAX_KEPT = 2 * MAX_ITEMS + 500
"""Entries of any container in a conversation."""
MAX_GROWTH_KB = 16_384.0
"""Of the resident size: events of megabytes leave gaps in the heap."""
MAX_MS = 40.0
"""Of processor time, for each megabyte of an event, and for a shorter one."""
REPORTS = 0.35
"""Share of what happens that the call reports; the rest are events of clients."""
RAW = 0.3
"""Share of spoiled events whose text is damaged, not what it means."""
OWNER = 1
SOUND = base64.b64encode(bytes(480)).decode()
VADS: tuple[Any, ...] = (
    None,
    {"type": "server_vad", "idle_timeout_ms": 5_000},
    {"type": "server_vad", "create_response": False, "threshold": 0.2},
    {"type": "semantic_vad", "eagerness": "low"},
)
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"}
TRANSCRIPTION = {"model": "whisper-1", "language": "en", "prompt": "a, b"}
SESSIONS: tuple[dict[str, Any], ...] = (
    *({"audio": {"input": {"turn_detection": vad}}} for vad in VADS),
    {"audio": {"input": {"transcription": TRANSCRIPTION, "format": {"type": "audio/pcmu"}}}},
    {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "ash"}}},
    {"output_modalities": ["text"], "instructions": "Be brief.", "max_output_tokens": 100},
    {"tools": [FUNCTION, MCP], "tool_choice": {"type": "function", "name": "f"}},
    {"tools": [{**MCP, "require_approval": "always"}], "tracing": "auto", "truncation": "auto"},
    {"prompt": {"id": "p", "variables": {"a": "b"}}, "include": None},
)


def _item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": {"type": kind, **fields}}


def _message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {**_item("message", role=role, content=[*content]), "previous_item_id": "root"}


SEEDS: tuple[dict[str, Any], ...] = (
    *({"type": "session.update", "session": {"type": "realtime", **one}} for one in SESSIONS),
    {"type": "input_audio_buffer.append", "audio": SOUND},
    {"type": "input_audio_buffer.append", "audio": SOUND * 40},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    _message("user", {"type": "input_text", "text": "Hello"}),
    _message("user", {"type": "input_audio", "audio": SOUND, "transcript": "Hi"}),
    _message("user", {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}),
    _message("assistant", {"type": "output_text", "text": "Good day."}),
    _message("system", {"type": "input_text", "text": "Now in French."}),
    _item("function_call", call_id="call_1", name="f", arguments="{}"),
    _item("function_call_output", call_id="call_1", output="42"),
    _item("mcp_approval_response", approval_request_id="ITEM", approve=True),
    {"type": "conversation.item.retrieve", "item_id": "ITEM"},
    {"type": "conversation.item.delete", "item_id": "ITEM"},
    {"type": "conversation.item.truncate", "item_id": "ITEM", "content_index": 0}
    | {"audio_end_ms": 300},
    {"type": "response.create"},
    {"type": "response.create", "response": {"conversation": "none", "input": [], "metadata": {}}},
    {"type": "response.create", "response": {"output_modalities": ["text"], "tools": [FUNCTION]}},
    {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "ITEM"}]}},
    {"type": "response.cancel", "response_id": "RESPONSE"},
    {"type": "response.cancel"},
    {"type": "transcription_session.update", "session": {}},
)
TRANSCRIPTION_SEEDS: tuple[dict[str, Any], ...] = (
    {"type": "session.update", "model": "whisper-1"},
    {"type": "session.update", "session": {"type": "transcription", **SESSIONS[4]}},
    *({"type": "session.update", "session": {"type": "transcription", **s}} for s in SESSIONS[:4]),
    *SEEDS[10:14],
    {"type": "input_audio_buffer.commit", "final": True},
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e308, float("nan"), 1 << 70, "", "x", "x" * 9_000),
    *("\0", "\ud800", "ä" * 300, "inf", "auto", "none", "root", "ITEM", "RESPONSE", SOUND),
    *([], {}, [[]], [{}], {"type": "x"}, [None] * 200, {"a": 1}, FUNCTION, MCP),
)
MEANINGFUL = (
    *(bytes([byte]) for byte in b'"\\{}[],:.-+eE0 \n\t\0\x7f'),
    *(b"null", b"true", b"NaN", b"Infinity", b"-0", b"1e999", b"\\u0000", b"\\ud800", b"\\"),
    *(b"[" * 3_000, b'{"a":' * 2_000, b'"type":"session.update",', b'"event_id":7,', b"9" * 5_000),
    "ä".encode(),
)
_RAW_SEEDS = tuple(json.dumps(seed).encode() for seed in SEEDS)


def spoiled(seeds: tuple[dict[str, Any], ...], chance: random.Random) -> Any:
    """An event, with values exchanged, left out, doubled or put elsewhere."""
    event = json.loads(json.dumps(chance.choice(seeds)))
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        event = _changed(event, chance)
    return event


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        match chance.randrange(6):
            case 0:
                value.pop(name)
            case 1:
                value[chance.choice((name + "s", "x", "id", "type", "event_id"))] = value[name]
            case 2:
                value[name] = deepcopy(chance.choice(ODD))
            case 3:
                value[name] = [value[name]] * chance.choice((1, 2, 200))
            case _:
                value[name] = _changed(value[name], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        value[at : at + 1] = [_changed(value[at], chance)] * chance.choice((0, 1, 1, 1, 2, 70))
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value + chance.choice((-1, 1, -1000, 100_000))
    return deepcopy(chance.choice(ODD))


class _Conversation:
    """One session, its client and its call."""

    def __init__(self, chance: random.Random, result: Result) -> None:
        self._chance, self._result = chance, result
        transport = chance.choice((Transport.WEBSOCKET, Transport.RTP))
        frozen = FrozenFields(chance.choice(((), ("tools", "instructions"))))
        self._core = RealtimeConversation(ConversationSession(), transport, frozen=frozen)
        self._items, self._responses = ["item_none"], ["resp_none"]
        self._lists: list[str] = []
        self._calls: list[str] = []
        self._commits = 0
        self.closed = False
        self._say(self._core.created())

    def step(self) -> None:
        if self._chance.random() < REPORTS:
            self._report()
        else:
            self._receive()

    def _named(self, text: str) -> str:
        item, response = self._chance.choice(self._items), self._chance.choice(self._responses)
        return text.replace('"ITEM"', f'"{item}"').replace('"RESPONSE"', f'"{response}"')

    def _receive(self) -> None:
        chance = self._chance
        if chance.random() < RAW:
            text = damage(_RAW_SEEDS, chance, MEANINGFUL).decode(errors="replace")
        else:
            text = json.dumps(spoiled(SEEDS, chance))
        text = self._named(text)
        before = self._core.session
        actions = _timed(lambda: self._core.receive(OWNER, text), text, self._result)
        events = [self._say(action.event) for action in actions if isinstance(action, Send)]
        self.closed = any(isinstance(action, Close) for action in actions)
        if any(event["type"] == "error" for event in events):
            self._result.counts["refused"] += 1
            if len(events) != 1 or self._core.session is not before:
                self._result.raised(AssertionError("a refused event has changed something"), text)
        else:
            self._result.counts["taken"] += 1
        self._note(actions)

    def _say(self, text: str) -> Any:
        event = json.loads(text)
        match event:
            case {"type": "conversation.item.added", "item": {"id": str(item_id)}}:
                self._items = [*self._items[-20:], item_id]
        return event

    def _note(self, actions: list[Any]) -> None:
        """What the call has to do, some of which it does later."""
        for action in actions:
            match action:
                case Generate(response_id=response_id):
                    self._responses = [*self._responses[-8:], response_id]
                case CommitAudio():
                    self._commits += 1
                case McpCall(item_id=item_id):
                    self._calls.append(item_id)
                case ListMcpTools(item_id=item_id):
                    self._lists.append(item_id)

    def _report(self) -> None:
        chance, core = self._chance, self._core
        response, ms = chance.choice(self._responses), chance.randrange(3_000)
        tool = McpListedTool(name="search", input_schema={})
        fault = McpToolError(type="tool_execution_error", message="no")
        call = "response_function_call"
        reports: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("speech_started", (ms,)),
            ("speech_stopped", (ms,)),
            ("speech_discarded", ()),
            ("user_partial", (chance.choice(("", "Hello", "Hello there")),)),
            ("user_turn", (chance.choice(("", "Hello there")), 0.5)),
            ("transcription_failed", ("no words",)),
            ("idle", (ms,)),
            ("interrupted", (chance.choice((None, ms)),)),
            ("playout_started", (response,)),
            ("playout_stopped", (response,)),
            ("output_cleared", (chance.choice((None, ms)),)),
            ("response_text", (response, chance.choice(("One two.", " three", "")))),
            ("response_audio", (response, np.zeros(RATE_OUT // 50, np.int16))),
            ("response_word", (response, "One", ms)),
            (call, (response, f"call_{chance.randrange(3)}", "f", chance.choice(("{}", "")))),
            (call, (response, "call_mcp", "search", "{}")),
            ("response_done", (response, Usage())),
            ("response_failed", (response, "code", "words")),
            ("mcp_tools", (self._one(self._lists), [tool])),
            ("mcp_tools_failed", (self._one(self._lists), "no answer")),
            ("mcp_called", (self._one(self._calls), "found")),
            ("mcp_called", (self._one(self._calls), fault)),
            ("dtmf", ("5", 1)),
        )
        name, arguments = chance.choice(reports)
        if name == "user_turn" and self._commits:
            self._commits -= 1
        report = getattr(core, name)
        actions = _timed(lambda: report(*arguments), f"{name} {arguments}", self._result)
        for action in actions:
            if isinstance(action, Send):
                self._say(action.event)
        self._note(actions)

    def _one(self, ids: list[str]) -> str:
        return ids.pop(self._chance.randrange(len(ids))) if ids else "item_none"

    def end(self) -> None:
        """What it keeps must have a bound, and its responses an end."""
        for path, number in sizes(self._core, ("offhook.web.realtime",)).items():
            if number > MAX_KEPT:
                left = self._result.left
                left[path] = max(number, left.get(path, 0))
        for response in self._responses:
            self._core.response_done(response, Usage())


class _Transcription:
    """A session that only transcribes."""

    closed = False

    def __init__(self, chance: random.Random, result: Result) -> None:
        self._chance, self._result = chance, result
        self._core = RealtimeSession(None, DEFAULT_OPTIONS, "", lambda model: None)
        self._core.created(1.0)

    def step(self) -> None:
        chance, core = self._chance, self._core
        if chance.random() < REPORTS:
            finished = [n for n, item in core._items.items() if item is not core._current]
            event: Any = Partial("Hello", 5, 100)
            number = max(0, core._count - 1)
            if finished and chance.random() < 0.5:
                event, number = Final("Hello there", 100), finished[0]
            _timed(lambda: core.recognized(number, event), repr(event), self._result)
            return
        text = json.dumps(spoiled(TRANSCRIPTION_SEEDS, chance))
        if chance.random() < RAW:
            text = damage((text.encode(),), chance, MEANINGFUL).decode(errors="replace")
        actions = _timed(lambda: list(core.receive(text)), text, self._result)
        for action in actions:
            if isinstance(action, SendToTranscriber):
                json.loads(action.text)
        self._result.counts["of transcriptions"] += 1
        self.closed = core.is_over

    def end(self) -> None:
        for path, number in sizes(self._core, ("offhook.web.realtime",)).items():
            if number > MAX_KEPT:
                self._result.left[path] = number


def _timed(action: Callable[[], list[Any]], about: str, result: Result) -> list[Any]:
    """What it returns; it must not raise."""
    result.messages += 1
    started = time.thread_time()
    try:
        return action()
    except Exception as error:
        result.raised(error, about)
        return []
    finally:
        took = time.thread_time() - started
        result.spent += took
        ms = took * 1000 / max(1, len(about) / (1 << 20))
        if ms > result.slowest_ms:
            result.slowest_ms, result.slowest = round(ms, 3), about


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many events through; progress goes to standard error."""
    chance, result = (
        random.Random(seed),
        Result("realtime", most_growth_kb=MAX_GROWTH_KB, most_ms=MAX_MS),
    )
    with collecting() as collect:
        _sessions(messages, chance, show, result, collect)
    return result


def _sessions(
    messages: int,
    chance: random.Random,
    show: bool,
    result: Result,
    collect: Callable[[int], None],
) -> None:
    grown_from, shown = 0.0, 0
    while result.messages < messages:
        kind = _Conversation if chance.random() < 0.8 else _Transcription
        session = kind(chance, result)
        until = result.messages + (LONG if chance.randrange(LONG_ONE) == 0 else EVENTS)
        while result.messages < min(until, messages) and not session.closed:
            session.step()
            collect(result.messages)
        session.end()
        if not grown_from and result.messages >= messages // 10:
            grown_from = resident_kb()
        if show and result.messages >= shown + 20_000:
            shown = result.messages
            print(f"{shown} events, {resident_kb():.0f} KB resident", file=sys.stderr)
    result.finish(grown_from)
