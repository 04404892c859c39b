"""The session object of conversations: what it says, and what an update changes."""

import json
from typing import Any

import pytest

from offhook.web.realtime.conversation.actions import Close, Configure
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_session import ConversationSession, full_session
from offhook.web.realtime.protocol.session_object import EventError
from tests.web.realtime.conversation.client import Client, Event, kinds, one, respond, update

VAD = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "idle_timeout_ms": None,
    "create_response": True,
    "interrupt_response": True,
}
SEMANTIC = {"type": "semantic_vad"}
FULL = {
    "type": "realtime",
    "model": "",
    "instructions": "",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "noise_reduction": None,
            "transcription": None,
            "turn_detection": VAD,
        },
        "output": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "voice": "marin",
            "speed": 1.0,
        },
    },
    "include": None,
    "max_output_tokens": "inf",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": None,
    "reasoning": None,
    "prompt": None,
    "tracing": None,
    "truncation": "auto",
}
FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "Does it.",
    "parameters": {"type": "object", "properties": {"a": {"enum": ["x", None]}}},
}
MCP = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://mcp.example.com",
    "authorization": "token-of-ours",
    "headers": {"X-Key": "secret-of-ours"},
    "allowed_tools": ["search"],
    "require_approval": {"never": {"tool_names": ["search"]}},
}


def session_of(client: Client, **changes: Any) -> Event:
    [event] = client(update(**changes))
    assert event["type"] == "session.updated", event
    table: Event = event["session"]
    return table


def test_the_first_event_has_the_whole_session() -> None:
    core = RealtimeConversation(
        ConversationSession(), Transport.WEBSOCKET, session_id="sess_1", expires_at=1_700_000_000
    )
    event = json.loads(core.created())
    echoed = {"id": "sess_1", "object": "realtime.session", "expires_at": 1_700_000_000}
    assert event["session"] == {**FULL, **echoed}


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ({"instructions": "Be kind."}, "instructions", "Be kind."),
        ({"output_modalities": ["text"]}, "output_modalities", ["text"]),
        ({"audio": {"input": {"turn_detection": None}}}, "audio.input.turn_detection", None),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 0.7}}}},
            "audio.input.turn_detection",
            {**VAD, "threshold": 0.7},
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}},
            "audio.input.turn_detection",
            {
                "type": "semantic_vad",
                "eagerness": "low",
                "create_response": True,
                "interrupt_response": True,
            },
        ),
        (
            {"audio": {"input": {"transcription": {"model": "whisper-1", "language": "de"}}}},
            "audio.input.transcription",
            {"model": "whisper-1", "language": "de", "prompt": None},
        ),
        (
            {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}},
            "audio.input.noise_reduction",
            {"type": "near_field"},
        ),
        (
            {"audio": {"input": {"format": {"type": "audio/pcmu"}}}},
            "audio.input.format",
            {"type": "audio/pcmu"},
        ),
        ({"audio": {"output": {"voice": {"id": "v_1"}}}}, "audio.output.voice", "v_1"),
        ({"tools": [FUNCTION]}, "tools", [FUNCTION]),
        ({"tool_choice": "required"}, "tool_choice", "required"),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            "tool_choice",
            {"type": "function", "name": "f"},
        ),
        ({"max_output_tokens": 100}, "max_output_tokens", 100),
        ({"tracing": "auto"}, "tracing", "auto"),
        ({"reasoning": {"effort": "low"}}, "reasoning", {"effort": "low"}),
        ({"prompt": {"id": "p"}}, "prompt", {"id": "p", "version": None, "variables": None}),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"model": "gpt-realtime"}, "model", "gpt-realtime"),
        ({"id": "sess_9", "object": "realtime.session", "expires_at": 1}, "object", None),
        ({"instructions": None}, "instructions", ""),
    ],
)
def test_an_update_changes_what_it_names_and_nothing_else(
    given: Event, path: str, value: object
) -> None:
    client = Client(session_id="sess_1")
    expected = json.loads(json.dumps(FULL))
    *above, name = path.split(".")
    inner = expected
    for each in above:
        inner = inner[each]
    if path != "object":
        inner[name] = value
    echoed = {"id": "sess_1", "object": "realtime.session", "expires_at": 0}
    assert session_of(client, **given) == {**expected, **echoed}
    [configure] = client.actions
    assert isinstance(configure, Configure)


def test_updates_add_up_and_null_turns_off() -> None:
    client = Client()
    session_of(client, audio={"input": {"transcription": {"model": "m", "prompt": "p"}}})
    session = session_of(client, audio={"input": {"transcription": {"language": "en"}}})
    assert session["audio"]["input"]["transcription"] == {
        "model": "m",
        "prompt": "p",
        "language": "en",
    }
    session_of(client, audio={"input": {"format": {"type": "audio/pcma"}}}, tools=[FUNCTION])
    session = session_of(client, audio={"input": {"transcription": None}}, tools=[])
    assert session["audio"]["input"]["transcription"] is None
    assert (session["audio"]["input"]["format"], session["tools"]) == ({"type": "audio/pcma"}, [])


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (
            {"audio": {"input": {"format": {"rate": 16_000}}}},
            "invalid_value",
            "audio.input.format.rate",
        ),
        ({"audio": {"output": {"speed": 2}}}, "invalid_value", "audio.output.speed"),
        (
            {"audio": {"input": {"turn_detection": {"type": "vad"}}}},
            "invalid_value",
            "audio.input.turn_detection.type",
        ),
        (
            {"audio": {"input": {"turn_detection": {"idle_timeout_ms": 100}}}},
            "invalid_value",
            "audio.input.turn_detection.idle_timeout_ms",
        ),
        (
            {
                "audio": {
                    "input": {"turn_detection": {"type": "semantic_vad", "idle_timeout_ms": 6000}}
                }
            },
            "unknown_parameter",
            "audio.input.turn_detection.idle_timeout_ms",
        ),
        ({"instructons": "x"}, "unknown_parameter", "instructons"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools.0.name"),
        *(
            ({"tools": [{"type": "function", "name": name}]}, "invalid_value", "tools.0.name")
            for name in ("has space", "weather.now", "größe", "f()")
        ),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "invalid_value", "tools.0"),
        ({"output_modalities": ["text", "audio"]}, "string_above_max_length", "output_modalities"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"tool_choice": "never"}, "invalid_value", "tool_choice"),
        ({"type": "transcription"}, "invalid_parameter", "type"),
        ({"audio": 3}, "invalid_value", "audio"),
    ],
)
def test_a_wrong_update_changes_nothing(given: Event, code: str, param: str) -> None:
    client = Client()
    before = client.core.session
    event = {**update(instructions="half", **given), "event_id": "u"}
    event["session"].update(given)
    [answer] = client(event)
    error = answer["error"]
    assert (error["code"], error["param"], error["event_id"]) == (code, f"session.{param}", "u")
    assert client.core.session is before
    assert client.actions == []


def test_type_is_required() -> None:
    client = Client()
    [event] = client({"type": "session.update", "session": {"instructions": "x"}})
    assert event["error"]["code"] == "missing_required_parameter"
    assert event["error"]["param"] == "session.type"
    assert client.actions == []


def test_the_beta_is_refused_once_and_for_all() -> None:
    client = Client()
    flat = {"modalities": ["text", "audio"], "voice": "alloy", "input_audio_format": "pcm16"}
    [event] = client({"type": "session.update", "session": flat})
    assert event["error"]["code"] == "beta_api_shape_disabled"
    assert client.actions == [Close(4000, "invalid_request_error.beta_api_shape_disabled", 1)]


def test_the_voice_stays_once_the_assistant_has_spoken() -> None:
    client = Client()
    assert (
        session_of(client, audio={"output": {"voice": "cedar"}})["audio"]["output"]["voice"]
        == "cedar"
    )
    client.turn()
    client.speak("Yes.")
    client.done()
    voice = {"output": {"voice": "ash"}}
    [event] = client(update(instructions="half", audio=voice))
    assert event["error"]["code"] == "cannot_update_voice"
    assert client.core.session.instructions == ""
    [event] = client(respond(audio=voice))
    assert event["error"]["code"] == "cannot_update_voice"
    session_of(client, audio={"output": {"voice": "cedar"}}, instructions="whole")


def test_tracing_stays_once_it_is_on() -> None:
    client = Client()
    session_of(client, tracing="auto")
    session_of(client, tracing="auto", instructions="x")
    [event] = client(update(tracing=None))
    assert event["error"]["param"] == "session.tracing"


def test_secrets_of_tools_are_kept_and_never_sent() -> None:
    client = Client()
    events = client(update(tools=[MCP]), update(instructions="x"))
    assert "ours" not in json.dumps(events)
    shown = {name: MCP[name] for name in MCP if name not in ("authorization", "headers")}
    assert one(events[-1:], "session.updated")["session"]["tools"] == [shown]
    [tool] = client.core.session.tools
    assert tool.authorization == "token-of-ours"  # type: ignore[union-attr]


def test_a_session_can_change_while_a_response_runs() -> None:
    client = Client()
    client.turn()
    session_of(client, instructions="later")
    assert kinds(client.speak("Yes.") + client.done())[-2:] == [
        "response.done",
        "rate_limits.updated",
    ]


def test_a_whole_session_is_made_of_part_of_one() -> None:
    assert full_session({"instructions": "x"}).as_dict() == {**FULL, "instructions": "x"}
    with pytest.raises(EventError) as error:
        full_session({"audio": {"output": {"speed": 3}}})
    assert error.value.param == "session.audio.output.speed"
