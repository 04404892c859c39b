"""What strangers may send over HTTP, data channels and the Realtime protocol, briefly fuzzed; for
longer: see `tests.fuzz`."""

import json
from unittest import mock

import pytest

from offhook.web.http.json_size import MAX_JSON_VALUES
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.conversation_events import parse_event
from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.realtime.protocol.session_object import EventError
from offhook.web.speech_api.admission import ByteBudget
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import parse
from tests.fuzz import http, realtime, sctp
from tests.fuzz.result import Result


def check(result: Result) -> None:
    """All but growth and time, of which a busy machine decides too in so short a run."""
    assert not result.exceptions
    assert not result.left


def test_requests_are_answered_or_refused() -> None:
    result = http.heads(1_500, 4)
    check(result)
    assert result.counts["400"] > 500
    assert result.counts["200"] > 50
    assert not result.counts["500"]


def test_forms_are_taken_or_refused() -> None:
    result = http.forms(1_000, 4)
    check(result)
    assert result.counts["taken"] > 150
    assert result.counts["400"] > 300


def test_chunks_of_data_channels_are_taken_or_refused() -> None:
    result = sctp.run(2_000, 4)
    check(result)
    assert result.counts["messages"] > 50
    assert result.counts["channels"] > 5


def test_events_of_the_realtime_protocol_are_taken_or_refused() -> None:
    result = realtime.run(4_000, 4)
    check(result)
    assert result.counts["taken"] > 300
    assert result.counts["refused"] > 1_000
    assert result.counts["of transcriptions"] > 100


# --- what they would find ---


def test_an_event_that_raises_is_found() -> None:
    with mock.patch.object(RealtimeConversation, "_truncate", side_effect=KeyError("x")):
        result = realtime.run(1_000, 4)
    assert "KeyError('x')" in result.exceptions[0]
    assert not result.passed


def test_an_upload_that_is_left_is_found() -> None:
    with mock.patch.object(ByteBudget, "release"):
        result = http.forms(40, 4)
    assert result.left["bytes"] > 1


# --- what they have found ---


def many_values(text: str) -> str:
    return json.dumps({"type": "session.update", "session": [text] * (MAX_JSON_VALUES + 1)})


def test_events_of_very_many_values_are_not_parsed() -> None:
    """Nine megabytes of them took the event loop of all calls 0.8 s."""
    with mock.patch("offhook.web.realtime.protocol.conversation_events._EVENT") as adapter:
        with pytest.raises(EventError, match=f"more than {MAX_JSON_VALUES} values"):
            parse_event(many_values("x"))
        assert not adapter.mock_calls
    conversation = RealtimeConversation(ConversationSession(), Transport.WEBSOCKET)
    (action,) = conversation.receive(1, many_values("x"))
    assert "message_too_long" in action.event  # type: ignore[union-attr]


def test_a_long_event_of_few_values_is_taken() -> None:
    audio = "A" * (8 << 20)
    assert parse_event(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


def test_a_request_for_speech_of_very_many_values_is_not_parsed() -> None:
    body = b'{"input": [' + b"[" * (MAX_JSON_VALUES + 1)
    with pytest.raises(ApiError, match=f"more than {MAX_JSON_VALUES} values"):
        parse(body)
