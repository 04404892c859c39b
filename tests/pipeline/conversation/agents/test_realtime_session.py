"""The client's side of a Realtime session, without a socket."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeClientEvent
from pydantic import TypeAdapter

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.agents.realtime.realtime_session import (
    MAX_OUTPUTS,
    MAX_UNSENT_CHARS,
    AudioDelta,
    ErrorReported,
    RealtimeSession,
    RemoteResponse,
    ResponseDone,
    ResponseFailed,
    ResponseState,
    TextDelta,
    UsageReported,
    WordsPlayed,
)

CLIENT: TypeAdapter[Any] = TypeAdapter(RealtimeClientEvent)
TOOL = {"name": "stock", "description": "How many.", "parameters": {"type": "object"}}
SECOND = np.arange(RATE_OUT, dtype=np.int16)


class Server:
    """The other side of a session, event by event."""

    def __init__(self, **settings: Any) -> None:
        self.session = RealtimeSession("Be kind.", [TOOL], "marin", **settings)
        self.sent: list[dict[str, Any]] = []
        self.read()

    def read(self) -> list[str]:
        """Types of the events that are new, each checked against OpenAI's types."""
        messages = self.session.messages_to_send()
        for message in messages:
            CLIENT.validate_json(message)
        self.sent += map(json.loads, messages)
        return [event["type"] for event in self.sent[len(self.sent) - len(messages) :]]

    def send(self, kind: str, **fields: Any) -> None:
        self.session.receive(json.dumps({"type": kind, "event_id": "event_1", **fields}))

    def events(self) -> list[Any]:
        found = []
        while (event := self.session.next_event()) is not None:
            found.append(event)
        return found

    def created(self, name: str = "resp_1") -> None:
        self.send("response.created", response={"id": name})

    def audio(self, pcm: Pcm = SECOND, item: str = "item_1", response: str = "resp_1") -> None:
        delta = base64.b64encode(pcm.tobytes()).decode()
        self.send("response.output_audio.delta", response_id=response, item_id=item, delta=delta)

    def text(self, delta: str, item: str = "item_1") -> None:
        kind = "response.output_audio_transcript.delta"
        self.send(kind, response_id="resp_1", item_id=item, delta=delta)

    def done(self, status: str = "completed", name: str = "resp_1", **more: Any) -> None:
        self.send("response.done", response={"id": name, "status": status, **more})

    def speaking(self) -> RemoteResponse:
        """A response that has a second of audio."""
        response = self.session.respond()
        self.created()
        self.text("One two three.")
        self.audio()
        self.read()
        self.events()
        return response


def test_the_session_is_described_once_and_has_no_turn_detection() -> None:
    server = Server()
    (update,) = server.sent
    session = update["session"]
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["audio"]["output"]["voice"] == "marin"
    assert session["tools"] == [{"type": "function", **TOOL}]
    server.session.configure("Be kind.", [TOOL])
    assert server.read() == []
    server.session.configure("Be brief.", [])
    assert server.read() == ["session.update"]
    assert server.sent[-1]["session"]["tools"] == []


def test_a_turn_is_appended_committed_and_answered() -> None:
    server = Server()
    server.session.append(SECOND)
    assert server.session.commit()
    response = server.session.respond()
    assert server.read() == [
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "response.create",
    ]
    assert base64.b64decode(server.sent[1]["audio"]) == SECOND.tobytes()
    server.created()
    server.text("Nine to ")
    server.audio()
    server.text("six.")
    server.done(usage={"input_tokens": 7, "output_tokens": 5})
    first, audio, rest, done = server.events()
    assert (first, rest) == (TextDelta(response, "Nine to "), TextDelta(response, "six."))
    assert isinstance(audio, AudioDelta)
    assert np.array_equal(audio.pcm, SECOND)
    assert isinstance(done, ResponseDone)
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (7, 5)
    assert response.transcript == "Nine to six."
    assert response.samples == RATE_OUT


def test_too_little_audio_is_no_turn_and_is_cleared() -> None:
    server = Server()
    server.session.append(SECOND[:2000])
    assert not server.session.commit()
    assert server.read() == ["input_audio_buffer.append", "input_audio_buffer.clear"]
    server.session.clear()
    assert not server.session.commit()
    assert server.read() == []


def test_an_interrupted_response_is_cancelled_and_truncated_where_it_was_played() -> None:
    server = Server()
    response = server.speaking()
    server.session.cut(response, 3 * RATE_OUT // 4)
    assert server.read() == ["response.cancel", "conversation.item.truncate"]
    assert server.sent[-2]["response_id"] == "resp_1"
    assert server.sent[-1]["audio_end_ms"] == 750
    server.audio()
    server.text("four")
    server.done("cancelled")
    assert server.events() == []
    server.send("conversation.item.truncated", item_id="item_1")
    assert server.read() == ["conversation.item.retrieve"]
    content = [{"type": "output_audio", "transcript": "One two"}]
    server.send("conversation.item.retrieved", item={"id": "item_1", "content": content})
    assert server.events() == [WordsPlayed(response, "One two")]


def test_a_server_that_keeps_no_words_is_asked_for_them_once() -> None:
    server = Server()
    first = server.speaking()
    server.session.cut(first, RATE_OUT // 2)
    server.done("cancelled")
    server.send("conversation.item.truncated", item_id="item_1")
    content = [{"type": "output_audio", "transcript": None}]
    server.send("conversation.item.retrieved", item={"id": "item_1", "content": content})
    assert server.events() == [WordsPlayed(first, "")]
    assert not server.session.keeps_words


def test_what_was_played_to_its_end_is_not_truncated() -> None:
    server = Server()
    response = server.speaking()
    server.audio(item="item_2")
    server.done()
    server.session.cut(response, RATE_OUT + RATE_OUT // 2)
    assert server.read() == ["conversation.item.truncate"]
    assert server.sent[-1]["item_id"] == "item_2"
    assert server.sent[-1]["audio_end_ms"] == 500


def test_what_nobody_heard_is_deleted() -> None:
    server = Server()
    response = server.speaking()
    server.session.cut(response, 0)
    assert server.read() == ["response.cancel", "conversation.item.delete"]
    item = {"type": "message", "id": "item_2"}
    server.send("response.output_item.added", response_id="resp_1", item=item)
    assert server.read() == ["conversation.item.delete"]
    assert server.sent[-1]["item_id"] == "item_2"


def test_the_next_response_waits_for_the_end_of_the_cancelled_one() -> None:
    server = Server()
    first = server.session.respond()
    assert server.read() == ["response.create"]
    server.session.cut(first, 0)  # before the server has told its id
    second = server.session.respond()
    assert server.read() == ["response.cancel"]
    server.created()
    server.audio()
    assert server.events() == []
    server.done("cancelled", usage={"input_tokens": 7, "output_tokens": 5})
    (report,) = server.events()
    assert isinstance(report, UsageReported)  # what nobody hears costs too
    assert report.usage.completion_tokens == 5
    assert server.read() == ["response.create"]
    server.created("resp_2")
    server.audio(response="resp_2", item="item_2")
    assert [event.response for event in server.events()] == [second]
    assert first.state is ResponseState.OVER


def test_function_calls_come_with_the_end_and_are_open_until_their_output() -> None:
    server = Server()
    response = server.session.respond()
    server.created()
    item = {"type": "function_call", "call_id": "c1", "name": "stock", "arguments": "{}"}
    server.send("response.output_item.done", response_id="resp_1", item=item)
    server.done()
    assert server.events() == [ResponseDone(response)]
    assert [call.name for call in response.calls] == ["stock"]
    assert server.session.open_calls == {"c1"}
    server.session.add_output("c1", '{"bells": 12}')
    assert server.session.open_calls == set()
    server.read()
    assert server.sent[-1]["item"]["output"] == '{"bells": 12}'


def test_a_conversation_is_told_as_text() -> None:
    server = Server()
    for role in ("user", "assistant", "system"):
        server.session.add_message(role, "Hello.")
    server.session.add_call("c1", "stock", "{}")
    assert server.session.open_calls == {"c1"}
    assert server.read() == ["conversation.item.create"] * 4
    kinds = [event["item"]["content"][0]["type"] for event in server.sent[1:4]]
    assert kinds == ["input_text", "output_text", "input_text"]


@pytest.mark.parametrize("kind", ["message", "function_call"])
def test_endless_outputs_are_too_long(kind: str) -> None:
    server = Server()
    response = server.session.respond()
    server.created()
    at = "added" if kind == "message" else "done"
    for number in range(MAX_OUTPUTS + 2):
        item = {"type": kind, "id": f"i{number}", "call_id": "c", "name": "n", "arguments": ""}
        server.send(f"response.output_item.{at}", response_id="resp_1", item=item)
    (event,) = server.events()
    assert (event.response, event.fault) == (response, Fault.TOO_LONG)
    assert len(response.items) + len(response.calls) == MAX_OUTPUTS + 1


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"code": "insufficient_quota"}, Fault.RATE_LIMITED),
        ({"code": "session_expired"}, Fault.UNREACHABLE),
        ({"code": "invalid_model"}, Fault.NO_MODEL),
        ({"code": "beta_api_shape_disabled"}, Fault.REFUSED),
    ],
)
def test_some_errors_end_the_session(error: dict[str, Any], fault: Fault) -> None:
    server = Server()
    server.session.respond()
    server.send("error", error={"message": "No.", **error})
    (event,) = server.events()
    assert (event.response, event.fault) == (None, fault)
    assert server.session.over
    server.session.append(SECOND)
    assert server.session.messages_to_send() == []


def test_errors_belong_to_the_event_that_they_name() -> None:
    server = Server()
    response = server.session.respond()
    server.read()
    error = {"code": "response_cancel_not_active", "message": "None.", "event_id": "other"}
    server.send("error", error=error)
    assert isinstance(server.events()[0], ErrorReported)
    error = {"code": "invalid_value", "message": "No.", "event_id": server.sent[-1]["event_id"]}
    server.send("error", error=error)
    (event,) = server.events()
    assert (event.response, event.fault) == (response, Fault.REFUSED)
    assert not server.session.over
    error["event_id"] = server.sent[0]["event_id"]  # of the session.update
    server.send("error", error=error)
    assert server.session.over


def test_a_failed_response_is_reported_with_its_fault() -> None:
    server = Server()
    response = server.session.respond()
    server.created()
    details = {"error": {"type": "server_error", "code": "server_error", "message": "Oh."}}
    server.done("failed", status_details=details)
    assert server.events() == [
        ResponseFailed(response, Fault.SERVER_ERROR, "server_error: Oh."),
    ]


def test_an_endless_answer_is_too_long() -> None:
    server = Server(max_characters=40)
    response = server.speaking()
    for _ in range(5):
        server.audio()
    (*_, event) = server.events()
    assert event == ResponseFailed(response, Fault.TOO_LONG, "its audio")
    assert server.read() == ["response.cancel"]


def test_a_server_that_reads_nothing_ends_the_session() -> None:
    server = Server()
    while not server.session.over:
        server.session.append(SECOND)
        assert server.session._unsent < MAX_UNSENT_CHARS + 100_000
    assert server.events()[0].fault is Fault.UNREACHABLE


KINDS = (
    "error",
    "response.created",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.done",
    "conversation.item.truncated",
    "conversation.item.retrieved",
    "rate_limits.updated",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "item", "error", "content", "usage", "status", "code"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["response", "response_id", "item", "item_id", "delta", "error"]),
    JSON | st.just("resp_1"),
    max_size=5,
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), FIELDS) | st.text(max_size=20), max_size=8))
def test_whatever_a_server_sends_is_an_event_or_the_end(script: list[Any]) -> None:
    server = Server()
    server.session.respond()
    server.created()
    for each in script:
        if isinstance(each, str):
            server.session.receive(each)
        else:
            server.send(each[0], **each[1])
        server.session.messages_to_send()
        server.events()
