"""Any order of events and reports: every response ends once, and no item is ever malformed."""

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offhook.web.realtime.conversation.actions import (
    ClearOutput,
    CommitAudio,
    Generate,
    ListMcpTools,
    McpCall,
)
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.items import McpListedTool, McpToolError
from tests.web.realtime.conversation.client import (
    CANCEL,
    CLEAR,
    CLEAR_OUTPUT,
    COMMIT,
    USAGE,
    Client,
    Event,
    created,
    message,
    respond,
    speech,
    truncate,
    update,
)
from tests.web.realtime.conversation.test_mcp import answer, server
from tests.web.realtime.conversation.test_orders import append

ANY = st.integers(0, 1_000)
MS = st.integers(0, 3_000)
VADS = [
    None,
    {"type": "server_vad", "idle_timeout_ms": 5_000},
    {"type": "server_vad", "create_response": False},
    {"type": "semantic_vad"},
]
UPDATES: list[Event] = [
    *({"audio": {"input": {"turn_detection": vad}}} for vad in VADS),
    {"audio": {"input": {"transcription": {"model": "m"}}}},
    {"audio": {"input": {"transcription": None}}},
    {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
    {"audio": {"output": {"voice": "ash"}}},
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"]},
    {"tools": [server()]},
    {"tools": [server("always")]},
    {"instructions": "half", "audio": {"output": {"speed": 9}}},
]
CREATES: list[Event] = [
    {},
    {"conversation": "none"},
    {"conversation": "none", "input": [], "metadata": {"a": "b"}},
    {"output_modalities": ["text"]},
    {"audio": {"output": {"voice": "ash"}}},
    {"tools": [server(server_label="own")]},
]


class ConversationMachine(RuleBasedStateMachine):
    """A client and a call that do whatever they like; the `Client` checks each event."""

    transport = Transport.WEBSOCKET

    def __init__(self) -> None:
        super().__init__()
        self.client = Client(self.transport)
        self.commits = 0
        self.clears = 0
        self.calls: list[str] = []
        self.listings: list[str] = []
        self.said: list[str] = []
        """Ids of responses, running or not."""

    def do(self, *events: Event) -> None:
        for event in events:
            before = self.client.core.session, list(self.client.items), +self.client.responses
            answers = self.client({**event, "event_id": "mine"})
            if any(each["type"] == "error" for each in answers):
                [wrong] = answers
                assert wrong["error"]["event_id"] == "mine"
                after = self.client.core.session, self.client.items, +self.client.responses
                assert before == after
                assert self.client.actions == []
            self.note()

    def tell(self, name: str, *args: Any) -> None:
        self.client.report(name, *args)
        self.note()

    def note(self) -> None:
        for action in self.client.actions:
            match action:
                case Generate(response_id=response_id):
                    self.said.append(response_id)
                case CommitAudio():
                    self.commits += 1
                case ClearOutput():
                    self.clears += 1
                case McpCall(item_id=item_id):
                    self.calls.append(item_id)
                case ListMcpTools(item_id=item_id):
                    self.listings.append(item_id)
        self.client.actions = []

    def pick(self, ids: list[str], at: int) -> str:
        return ids[-1 - at % len(ids)] if ids else "none"

    # --- the client ---

    @rule(session=st.sampled_from(UPDATES))
    def update(self, session: Event) -> None:
        self.do(update(**session))

    @rule(response=st.sampled_from(CREATES))
    def respond(self, response: Event) -> None:
        self.do(respond(**response))

    @rule(response=st.sampled_from(CREATES))
    def respond_twice(self, response: Event) -> None:
        self.do(respond(**response), respond(**response))

    @rule(at=ANY, named=st.booleans())
    def cancel(self, at: int, named: bool) -> None:
        self.do({**CANCEL, "response_id": self.pick(self.said, at)} if named else CANCEL)

    @rule(ms=st.sampled_from([20, 100, 200]))
    def append(self, ms: int) -> None:
        self.do(append(ms))

    @rule(event=st.sampled_from([COMMIT, CLEAR, CLEAR_OUTPUT, {"type": "x"}, {}]))
    def simple(self, event: Event) -> None:
        self.do(event)

    @rule(at=ANY, where=st.sampled_from([None, "root", "item"]), mine=st.booleans())
    def create_item(self, at: int, where: str | None, mine: bool) -> None:
        event = message("hi", **({"id": f"mine_{at % 5}"} if mine else {}))
        previous = self.pick(self.client.items, at) if where == "item" else where
        self.do({**event, "previous_item_id": previous})

    @rule(at=st.integers(0, 3))
    def function_output(self, at: int) -> None:
        self.do(created({"type": "function_call_output", "call_id": f"call_{at}", "output": "x"}))

    @rule(at=ANY, kind=st.sampled_from(["retrieve", "delete"]))
    def of_item(self, at: int, kind: str) -> None:
        item_id = self.pick(self.client.items, at)
        self.do({"type": f"conversation.item.{kind}", "item_id": item_id})

    @rule(at=ANY, ms=MS)
    def truncate(self, at: int, ms: int) -> None:
        self.do(truncate(self.pick(self.client.items, at), ms))

    @rule(at=ANY, approve=st.booleans())
    def approve(self, at: int, approve: bool) -> None:
        self.do(answer(self.pick(self.client.items, at), approve))

    # --- the call ---

    @rule(kind=st.sampled_from(["speech_started", "speech_stopped", "idle"]), ms=MS)
    def voice(self, kind: str, ms: int) -> None:
        self.tell(kind, ms)

    @rule(text=st.sampled_from(["", "Hello", "Hello there"]))
    def partial(self, text: str) -> None:
        self.tell("user_partial", text)

    @rule(text=st.sampled_from(["", "Hello there"]))
    def turn(self, text: str) -> None:
        self.tell("user_turn", text, 0.5)

    @rule()
    def recognizer_fails(self) -> None:
        self.tell("transcription_failed", "no words")

    @rule()
    def noise(self) -> None:
        self.tell("speech_discarded")

    @rule(at=ANY, kind=st.sampled_from(["playout_started", "playout_stopped"]))
    def playout(self, at: int, kind: str) -> None:
        self.tell(kind, self.pick(self.said, at))

    @rule(ms=st.none() | MS)
    def interrupt(self, ms: int | None) -> None:
        self.tell("interrupted", ms)

    @rule(ms=st.none() | MS)
    def leave(self, ms: int | None) -> None:
        self.tell("left", ms)

    @precondition(lambda self: self.clears)
    @rule(ms=st.none() | MS)
    def cleared(self, ms: int | None) -> None:
        self.clears -= 1
        self.tell("output_cleared", ms)

    @rule(at=ANY, text=st.sampled_from(["One two.", " three", ""]))
    def text(self, at: int, text: str) -> None:
        self.tell("response_text", self.pick(self.said, at), text)

    @rule(at=ANY, ms=st.integers(0, 300))
    def audio(self, at: int, ms: int) -> None:
        self.tell("response_audio", self.pick(self.said, at), speech(ms))

    @rule(at=ANY, word=st.sampled_from(["One", "two.", "three"]), ms=MS)
    def word(self, at: int, word: str, ms: int) -> None:
        self.tell("response_word", self.pick(self.said, at), word, ms)

    @rule(at=ANY, call=st.integers(0, 3))
    def function_call(self, at: int, call: int) -> None:
        name = "response_function_call"
        self.tell(name, self.pick(self.said, at), f"call_{call}", "f", "{}")

    @rule(at=ANY)
    def mcp_call(self, at: int) -> None:
        name = "response_function_call"
        self.tell(name, self.pick(self.said, at), "call_mcp", "search", "{}")

    @rule(at=ANY, fine=st.booleans())
    def mcp_result(self, at: int, fine: bool) -> None:
        item_id = self.pick(self.calls, at)
        if fine:
            self.tell("mcp_called", item_id, "found")
        else:
            error = McpToolError(type="tool_execution_error", message="no")
            self.tell("mcp_called", item_id, error)

    @rule(fine=st.booleans())
    def mcp_list(self, fine: bool) -> None:
        if self.listings and fine:
            tool = McpListedTool(name="search", input_schema={})
            self.tell("mcp_tools", self.listings.pop(), [tool])
        elif self.listings:
            self.tell("mcp_tools_failed", self.listings.pop(), "no answer")

    @rule(at=ANY, reason=st.sampled_from([None, "max_output_tokens"]))
    def done(self, at: int, reason: str | None) -> None:
        self.tell("response_done", self.pick(self.said, at), USAGE, reason)

    @rule(at=ANY)
    def fails(self, at: int) -> None:
        self.tell("response_failed", self.pick(self.said, at), "code", "words")

    # --- what always holds ---

    @invariant()
    def clients_know_the_conversation(self) -> None:
        context = self.client.core._items.context()
        assert [item.id for item in context] == self.client.items
        for item in context:
            json.dumps(item.as_dict())
            open_ = getattr(item, "status", "") == "in_progress"
            assert not open_ or item.id in self.client.open_items

    @invariant()
    def one_response_at_a_time_is_the_conversations(self) -> None:
        running = self.client.core._responses._running.values()
        assert {each.id for each in running} == set(+self.client.responses)
        assert sum(each.in_conversation for each in running) <= 1

    def teardown(self) -> None:
        """Once the call has reported what it owes, every response has ended, and every item."""
        while self.client.core._buffer._awaiting:
            self.tell("user_turn", "", 0.1)
        for _ in range(4):  # what was due follows
            while self.listings:
                self.tell("mcp_tools_failed", self.listings.pop(), "no answer")
            for item_id in self.calls:
                self.tell("mcp_called", item_id, "found")
            for response_id in tuple(self.said):
                self.tell("response_done", response_id, USAGE)
        assert not +self.client.responses
        assert self.client.open_items == set()


class RtpMachine(ConversationMachine):
    transport = Transport.RTP


ConversationMachine.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 3, stateful_step_count=40
)
RtpMachine.TestCase.settings = ConversationMachine.TestCase.settings
TestOnWebSocket = ConversationMachine.TestCase
TestByRtp = RtpMachine.TestCase
