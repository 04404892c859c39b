"""The order of events of Realtime conversations, as OpenAI's server has it."""

import base64

import numpy as np
import pytest

from offhook.web.realtime.conversation.actions import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CommitAudio,
    Generate,
)
from offhook.web.realtime.conversation.audio import AudioStore
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.protocol.items import FunctionCallOutput, InputAudio, UserMessage
from tests.web.realtime.conversation.client import (
    CANCEL,
    CLEAR,
    CLEAR_OUTPUT,
    COMMIT,
    TRANSCRIBED,
    Client,
    Event,
    created,
    kinds,
    message,
    one,
    respond,
    speech,
    update,
)

TRANSCRIPTION = "conversation.item.input_audio_transcription"
TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]
OPENED = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
SPOKEN = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
]
DONE = ["response.done", "rate_limits.updated"]
FUNCTION = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "conversation.item.done",
    "response.output_item.done",
]


def append(ms: int) -> Event:
    audio = base64.b64encode(speech(ms).tobytes()).decode()
    return {"type": "input_audio_buffer.append", "audio": audio}


def output(call_id: str, text: str = "42") -> Event:
    return created({"type": "function_call_output", "call_id": call_id, "output": text})


def test_a_spoken_turn() -> None:
    client = Client(session=TRANSCRIBED)
    events = client.report("speech_started", 1_300)
    events += client.report("user_partial", "Hello")
    events += client.report("speech_stopped", 2_000)
    events += client.report("user_turn", "Hello there.", 0.7)
    started, delta, stopped, committed, added, *_ = events
    heard = [f"{TRANSCRIPTION}.delta", f"{TRANSCRIPTION}.completed"]
    assert kinds(events) == [TURN[0], heard[0], *TURN[1:], *heard, "response.created"]
    assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (1_000, 2_000)
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert {event["item_id"] for event in (started, delta, stopped, committed)} == {
        added["item"]["id"]
    }
    completed = one(events, f"{TRANSCRIPTION}.completed")
    assert completed["transcript"] == "Hello there."
    assert completed["usage"] == {"type": "duration", "seconds": 0.7}
    assert client.context[0].content[0].heard == "Hello there."  # type: ignore[union-attr]
    assert client.retrieved(added["item"]["id"])["content"][0]["transcript"] == "Hello there."

    events = client.speak("Good morning.") + client.done()
    word = "response.output_audio.delta"
    transcript = "response.output_audio_transcript.delta"
    assert kinds(events) == [*OPENED, transcript, word, word, *SPOKEN, *DONE]
    assert events[2]["part"] == {"type": "audio", "transcript": ""}
    response = one(events, "response.done")["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [
        {"type": "output_audio", "transcript": "Good morning."}
    ]
    assert response["usage"]["output_token_details"] == {"text_tokens": 2, "audio_tokens": 3}
    assert client.open_items == set()


def test_without_a_transcription_setting_clients_get_no_words_and_the_agent_does() -> None:
    client = Client()
    assert kinds(client.turn("Hello.")) == [*TURN, "response.created"]
    [item] = client.context
    assert isinstance(item, UserMessage)
    part = item.content[0]
    assert isinstance(part, InputAudio)
    assert (part.heard, part.transcript) == ("Hello.", None)


def test_text_is_answered_in_text() -> None:
    client = Client(session={"output_modalities": ["text"]})
    assert kinds(client(message("Hi"))) == ["conversation.item.added", "conversation.item.done"]
    assert kinds(client(respond())) == ["response.created"]
    events = client.report("response_text", client.response_id, "Good ")
    events += client.report("response_text", client.response_id, "day.")
    events += client.report("response_audio", client.response_id, speech(20)) + client.done()
    assert kinds(events) == [
        *OPENED,
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        *SPOKEN[2:],
        *DONE,
    ]
    assert events[2]["part"] == {"type": "text", "text": ""}
    assert one(events, "response.output_text.done")["text"] == "Good day."
    assert one(events, "response.done")["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "Good day."}
    ]


def test_a_function_call_and_its_output() -> None:
    client = Client()
    client.turn()
    events = client.report("response_function_call", client.response_id, "call_1", "f", '{"a":1}')
    assert kinds(events) == FUNCTION
    first, added = events[0]["item"], events[1]["item"]
    assert first == added
    assert (first["name"], first["call_id"], first["arguments"]) == ("f", "call_1", "")
    assert (events[3]["arguments"], events[3]["name"]) == ('{"a":1}', "f")
    assert events[-1]["item"]["status"] == "completed"
    assert kinds(client.done()) == DONE
    assert kinds(client(output("call_1"))) == ["conversation.item.added", "conversation.item.done"]
    client(respond())
    assert isinstance(client.context[-1], FunctionCallOutput)


def test_calls_and_speech_of_one_response_have_indexes_of_their_own() -> None:
    client = Client()
    client.turn()
    client.speak("One moment.")
    for call_id in ("call_1", "call_2"):
        client.report("response_function_call", client.response_id, call_id, "f", "{}")
    events = client.done()
    assert kinds(events) == [*SPOKEN, *DONE]
    found = one(events, "response.done")["response"]["output"]
    assert [item["type"] for item in found] == ["message", "function_call", "function_call"]
    done = [event for event in client.events if event["type"] == "response.output_item.done"]
    assert sorted(event["output_index"] for event in done) == [0, 1, 2]


def test_an_output_within_the_response_is_acknowledged_after_it() -> None:
    client = Client()
    client.turn()
    client.report("response_function_call", client.response_id, "call_1", "f", "{}")
    assert client(output("call_1")) == []
    assert kinds(client.done()) == [*DONE, "conversation.item.added", "conversation.item.done"]


def test_what_belongs_behind_such_an_output_waits_with_it() -> None:
    client = Client()
    client.turn()
    client.report("response_function_call", client.response_id, "call_1", "f", "{}")
    given = {**output("call_1")["item"], "id": "out"}
    assert client(created(given), {**message("x", id="x"), "previous_item_id": "out"}) == []
    [event] = client(message("y", id="x"))
    assert event["error"]["code"] == "item_create_duplicate_item_id"
    client.done()
    assert client.items[-2:] == ["out", "x"]


def test_push_to_talk_waits_for_the_words() -> None:
    client = Client(session={**TRANSCRIBED})
    client(update(audio={"input": {"turn_detection": None}}))
    assert client.report("speech_started", 500) == []
    client(append(200))
    [appended] = client.actions
    assert isinstance(appended, AppendAudio)
    assert (len(appended.pcm), appended.rate) == (4_800, 24_000)
    assert kinds(client(COMMIT)) == TURN[2:]
    assert client.actions == [CommitAudio()]
    assert kinds(client(respond())) == ["response.created"]
    assert client.actions == []  # the words are not known
    events = client.report("user_turn", "What time is it?", 0.2)
    assert kinds(events) == [f"{TRANSCRIPTION}.delta", f"{TRANSCRIPTION}.completed"]
    [generate] = client.actions
    assert isinstance(generate, Generate)
    assert generate.items[0].content[0].heard == "What time is it?"  # type: ignore[union-attr]


def test_a_commit_creates_no_response() -> None:
    client = Client()
    client(append(100), COMMIT)
    assert client.report("user_turn", "Hello.", 0.1) == []
    assert client.generated == []


def test_a_recogniser_that_fails_is_reported_and_holds_nothing_up() -> None:
    client = Client(session=TRANSCRIBED)
    client(append(100), COMMIT, respond())
    assert kinds(client.report("transcription_failed", "the engine failed")) == [
        f"{TRANSCRIPTION}.failed"
    ]
    assert len(client.generated) == 1


def test_a_pause_within_a_turn_and_noise() -> None:
    client = Client()
    events = client.report("speech_started", 1_000) + client.report("speech_started", 1_100)
    events += client.report("speech_stopped", 1_500) + client.report("speech_stopped", 1_600)
    events += client.report("speech_started", 1_700) + client.report("speech_discarded")
    assert kinds(events) == [*TURN[:2], *TURN[:2]]
    assert client.report("user_turn", "", 0.0) == []
    assert kinds(client(CLEAR)) == ["input_audio_buffer.cleared"]
    assert client.actions == [ClearAudio()]


def test_idle_time() -> None:
    client = Client()
    assert client.report("idle", 9_000) == []
    vad = {"type": "server_vad", "idle_timeout_ms": 5_000}
    client(update(**TRANSCRIBED), update(audio={"input": {"turn_detection": vad}}))
    events = client.report("idle", 9_000)
    item = ["conversation.item.added", "conversation.item.done"]
    assert kinds(events) == [
        "input_audio_buffer.timeout_triggered",
        *item,
        "input_audio_buffer.committed",
        *item,
        f"{TRANSCRIPTION}.completed",
        "response.created",
    ]
    assert (events[0]["audio_start_ms"], events[0]["audio_end_ms"]) == (4_000, 9_000)
    assert events[1]["item"]["role"] == "system"
    assert events[3]["previous_item_id"] == events[1]["item"]["id"]
    assert events[0]["item_id"] == events[3]["item_id"] == events[4]["item"]["id"]
    assert events[6]["transcript"] == ""


def test_keys_pressed_have_no_event_id() -> None:
    [event] = Client(Transport.RTP).report("dtmf", "5", 1_700_000_000)
    assert event == {
        "type": "input_audio_buffer.dtmf_event_received",
        "event": "5",
        "received_at": 1_700_000_000,
    }


def test_an_interruption_where_the_client_plays() -> None:
    client = Client()
    client.turn()
    client.speak("Good morning.")
    client.report("speech_started", 5_000)
    events = client.report("interrupted", None)
    assert kinds(events) == [*SPOKEN, *DONE]
    assert client.actions == [CancelResponse(client.response_id)]
    assert events[1]["transcript"] == "Good morning."
    assert events[4]["item"]["status"] == "incomplete"
    response = one(events, "response.done")["response"]
    assert response["status"] == "cancelled"
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert client.report("response_text", client.response_id, "late") == []
    assert client.done() == []


def test_an_interruption_where_the_server_plays() -> None:
    client = Client(Transport.RTP)
    client.turn()
    events = client.speak("Good morning to you.")
    assert "response.output_audio.delta" not in kinds(events)
    assert kinds(client.report("playout_started", client.response_id)) == [
        "output_audio_buffer.started"
    ]
    events = client.report("interrupted", 1_200)
    assert kinds(events) == [
        *SPOKEN,
        *DONE,
        "conversation.item.truncated",
        "output_audio_buffer.cleared",
    ]
    assert events[-2]["audio_end_ms"] == 1_200
    item = one(events, "response.done")["response"]["output"][0]
    assert item["content"] == [{"type": "output_audio", "transcript": "Good morning"}]
    assert client.retrieved(item["id"]) == item


def test_an_interruption_after_the_response_is_done() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning to you.")
    client.report("playout_started", client.response_id)
    client.done()
    events = client.report("interrupted", 600)
    assert kinds(events) == ["conversation.item.truncated", "output_audio_buffer.cleared"]
    assert client.actions == []
    client.turn()
    assert client.context[1].content[0].transcript == "Good"  # type: ignore[union-attr]


def test_playout_ends_after_the_response() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    assert client.report("playout_stopped", client.response_id) == []  # more may come
    assert client.report("playout_started", client.response_id) == []
    assert client.report("playout_stopped", client.response_id) == []
    assert kinds(client.done())[-3:] == [*DONE, "output_audio_buffer.stopped"]
    assert client.report("interrupted", 100) == []
    client.turn()
    client.speak("Yes.")
    client.report("playout_started", client.response_id)
    client.done()
    assert kinds(client.report("playout_stopped", client.response_id)) == [
        "output_audio_buffer.stopped"
    ]


def test_a_client_cancels_what_the_server_plays() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    response = one(client(CANCEL), "response.done")["response"]
    assert response["status_details"]["reason"] == "client_cancelled"
    assert client.actions == [CancelResponse(client.response_id), ClearOutput()]
    events = client.report("output_cleared", 500)
    assert kinds(events) == ["conversation.item.truncated", "output_audio_buffer.cleared"]
    assert client.retrieved(events[0]["item_id"])["content"][0]["transcript"] == "Good"
    assert client(CLEAR_OUTPUT) == []
    assert client.report("output_cleared", 500) == []


def test_a_client_clears_what_the_server_plays() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    client.done()
    assert client(CLEAR_OUTPUT) == []
    assert client.actions == [ClearOutput()]
    events = client.report("output_cleared", 500)
    assert kinds(events) == ["conversation.item.truncated", "output_audio_buffer.cleared"]
    assert client.report("playout_started", client.response_id) == []


def test_clearing_the_output_also_ends_what_is_being_generated() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    response = one(client(CLEAR_OUTPUT), "response.done")["response"]
    assert response["status_details"]["reason"] == "client_cancelled"
    assert client.actions == [CancelResponse(client.response_id), ClearOutput()]
    events = client.report("output_cleared", 500)
    assert kinds(events) == ["conversation.item.truncated", "output_audio_buffer.cleared"]
    assert one(client(respond()), "response.created")


def test_what_was_not_begun_to_be_played_was_not_heard() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    events = client.report("interrupted", 0)
    assert kinds(events) == [*SPOKEN, *DONE, "conversation.item.truncated"]
    item = one(events, "response.done")["response"]["output"][0]
    assert item["content"] == [{"type": "output_audio", "transcript": ""}]
    assert client.report("playout_started", client.response_id) == []


def test_what_is_cancelled_in_a_gap_was_heard_up_to_it() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("response_text", client.response_id, " How are you?")
    client.report("playout_started", client.response_id)
    client.report("playout_stopped", client.response_id)
    events = client(CANCEL)
    assert kinds(events)[-3:] == [
        "rate_limits.updated",
        "output_audio_buffer.stopped",
        "conversation.item.truncated",
    ]
    item = one(events, "response.done")["response"]["output"][0]
    assert item["content"] == [{"type": "output_audio", "transcript": "Good morning."}]


def test_what_waits_behind_what_is_played_was_not_heard() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    client.done()
    for text in ("How are you?", "Are you there?"):
        client(respond())
        client.speak(text)
        if "you there" not in text:
            client.done()
    events = client.report("interrupted", 600)
    assert kinds(events)[-4:] == [
        "conversation.item.truncated",
        "output_audio_buffer.cleared",
        "conversation.item.truncated",
        "conversation.item.truncated",
    ]
    client(respond())
    words = [item.content[0].transcript for item in client.context[1:]]  # type: ignore[union-attr]
    assert words == ["Good", "", ""]


def test_cancelling_the_next_response_clears_what_is_played() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("Good morning.")
    client.report("playout_started", client.response_id)
    client.done()
    client(respond())
    client(CANCEL)
    assert client.actions == [CancelResponse(client.response_id), ClearOutput()]
    events = client.report("output_cleared", 600)
    assert kinds(events) == ["conversation.item.truncated", "output_audio_buffer.cleared"]


def test_where_the_client_plays_nothing_is_said_of_playout() -> None:
    client = Client()
    client.turn()
    client.speak("Good morning.")
    assert client.report("playout_started", client.response_id) == []
    assert client.report("playout_stopped", client.response_id) == []
    events = client.report("interrupted", 500)
    assert kinds(events) == [*SPOKEN, *DONE]
    assert one(events, "response.done")["response"]["output"][0]["content"] == [
        {"type": "output_audio", "transcript": "Good morning."}
    ]


def test_a_response_beside_the_conversation() -> None:
    client = Client()
    client.turn()
    main = client.response_id
    metadata = {"topic": "class"}
    events = client(
        respond(
            conversation="none",
            metadata=metadata,
            input=[],
            instructions="Classify.",
            output_modalities=["text"],
            max_output_tokens=5,
        )
    )
    response = one(events, "response.created")["response"]
    assert (response["conversation_id"], response["metadata"]) == (None, metadata)
    assert (response["output_modalities"], response["max_output_tokens"]) == (["text"], 5)
    beside = client.generated[-1]
    assert (beside.items, beside.instructions, beside.conversation) == ((), "Classify.", "none")
    client.report("interrupted", None)
    events = client.report("response_text", beside.response_id, "greeting") + client.done()
    assert kinds(events) == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *DONE,
    ]
    assert one(events, "response.done")["response"]["metadata"] == metadata
    assert client.responses == {main: 0, beside.response_id: 0}
    assert len(client.items) == 1


def test_a_response_beside_the_conversation_is_spoken_and_not_kept() -> None:
    client = Client()
    client(respond(conversation="none", output_modalities=["audio"]))
    response = client.response_id
    told = client.report("response_audio", response, speech(100))
    assert one(told, "response.output_audio.delta")["delta"]
    client.done()
    assert client.items == []


def test_empty_audio_is_no_audio() -> None:
    client = Client()
    assert client({"type": "input_audio_buffer.append", "audio": ""}) == []
    assert client.actions == []


def test_words_of_a_message_that_was_deleted_meanwhile_go_nowhere() -> None:
    client = Client(session={**TRANSCRIBED})
    client(append(200))
    item = one(client(COMMIT), "input_audio_buffer.committed")
    client({"type": "conversation.item.delete", "item_id": item["item_id"]})
    assert client.report("user_turn", "Never mind.", 0.2) == []


def test_the_input_of_a_response() -> None:
    client = Client()
    client(message("one", id="a"), message("two", id="b"))
    given = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "new"}]}
    client(respond(input=[{"type": "item_reference", "id": "b"}, given]))
    assert client.context[0].id == "b"
    assert client.context[1].content[0].text == "new"  # type: ignore[union-attr]
    assert client.items == ["a", "b"]


def test_a_response_has_settings_of_its_own() -> None:
    client = Client(
        session={"instructions": "Be kind.", "tools": [{"type": "function", "name": "f"}]}
    )
    out = {"voice": {"id": "cedar"}, "format": {"type": "audio/pcmu"}}
    events = client(respond(audio={"output": out}, tools=[], tool_choice="none", instructions=""))
    asked = client.generated[-1]
    assert (asked.tools, asked.tool_choice, asked.instructions) == ((), "none", "")
    assert events[0]["response"]["audio"] == {
        "output": {"format": {"type": "audio/pcmu"}, "voice": "cedar"}
    }
    delta = one(
        client.report("response_audio", client.response_id, speech(100)),
        "response.output_audio.delta",
    )
    assert len(base64.b64decode(delta["delta"])) == 800
    client.done()
    client(respond())
    assert client.generated[-1].instructions == "Be kind."


def test_what_cannot_be_generated_fails_the_response_and_not_the_session() -> None:
    client = Client()
    client.turn()
    client.speak("Well")
    events = client.report("response_failed", client.response_id, "llm_error", "no answer")
    assert kinds(events) == [*SPOKEN, *DONE]
    assert events[-2]["response"]["status_details"] == {
        "type": "failed",
        "error": {"type": "server_error", "code": "llm_error", "message": "no answer"},
    }
    assert kinds(client.turn())[-1] == "response.created"


def test_a_limit_leaves_a_response_incomplete() -> None:
    client = Client()
    client.turn()
    client.speak("Well")
    response = one(client.done(reason="max_output_tokens"), "response.done")["response"]
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["status_details"]["reason"] == "max_output_tokens"


def test_a_turn_within_a_response_is_answered_after_it() -> None:
    client = Client()
    client.turn()
    first = client.response_id
    assert "response.created" not in kinds(client.turn("And you?"))
    assert kinds(client.done()) == [*DONE, "response.created"]
    assert client.response_id != first


def test_a_turn_creates_no_response_where_that_is_off() -> None:
    client = Client()
    client(update(audio={"input": {"turn_detection": {"create_response": False}}}))
    assert kinds(client.turn()) == TURN


def test_items_go_where_they_belong() -> None:
    client = Client()
    client(message("b", id="b"), message("sys", "system", id="s"))
    client({**message("a", id="a"), "previous_item_id": "root"})
    client({**message("c", "assistant", id="c"), "previous_item_id": "b"})
    assert client.items == ["a", "b", "c", "s"]
    assert kinds(client({"type": "conversation.item.delete", "item_id": "b"})) == [
        "conversation.item.deleted"
    ]
    client(respond())
    assert [item.id for item in client.context] == ["a", "c", "s"]
    assert client.items == ["a", "c", "s"]


def test_items_are_bounded_and_the_oldest_goes_first() -> None:
    client = Client()
    for _ in range(1_001):
        client(message("x"))
    assert len(client.items) == 1_000
    assert client.events[-1]["type"] == "conversation.item.deleted"


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_audio_is_retrieved_as_it_was_sent(kind: str) -> None:
    client = Client(session={"audio": {"output": {"format": {"type": kind}}}})
    client.turn()
    client.speak("Good morning.")
    deltas = [e["delta"] for e in client.events if e["type"] == "response.output_audio.delta"]
    whole = b"".join(base64.b64decode(delta) for delta in deltas)
    item_id = one(client.done(), "response.done")["response"]["output"][0]["id"]
    assert base64.b64decode(client.retrieved(item_id)["content"][0]["audio"]) == whole
    assert len(whole) == 1_000 * (48 if kind == "audio/pcm" else 8)


def test_a_users_audio_can_be_retrieved() -> None:
    client = Client()
    item_id = client.turn()[0]["item_id"]
    assert "audio" not in client.retrieved(item_id)["content"][0]
    client.done()
    events = client.report("user_turn", "Hi.", 0.1, audio=speech(100))
    audio = client.retrieved(events[0]["item_id"])["content"][0]["audio"]
    assert np.array_equal(np.frombuffer(base64.b64decode(audio), "<i2"), speech(100))


def test_kept_audio_is_bounded() -> None:
    store = AudioStore(100)
    store.append("a", bytes(60))
    store.append("b", bytes(60))
    assert (len(store.get("a")), len(store.get("b"))) == (0, 60)
    store.truncate("b", 10)
    store.append("c", bytes(90))
    assert (len(store.get("b")), len(store.get("c"))) == (10, 90)
    store.drop("c")
    assert store.get("c") == b""


def test_long_audio_comes_in_small_frames() -> None:
    client = Client()
    client.turn()
    client.report("response_audio", client.response_id, speech(10_000))
    assert kinds(client.events).count("response.output_audio.delta") == 5


def test_a_session_ends_with_its_time() -> None:
    client = Client()
    client.turn()
    client(respond(conversation="none"))
    events = client.report("expired")
    assert kinds(events) == [*DONE, *DONE, "error"]
    assert events[-1]["error"]["code"] == "session_expired"
    assert set(client.responses.values()) == {0}
