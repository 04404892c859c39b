"""What stock clients send first, made by the clients themselves, is accepted as it is."""

import json
from typing import Any

from agents.realtime.openai_realtime import OpenAIRealtimeWebSocketModel
from pipecat.services.openai.realtime import events

from tests.web.realtime.conversation.client import Client, Event, kinds, update


def sent(event: events.ClientEvent) -> str:
    """As Pipecat sends it."""
    return json.dumps(event.model_dump(exclude_none=True))


def updated(client: Client, text: str) -> Event:
    [event] = client.send(text)
    assert event["type"] == "session.updated", event
    session: Event = event["session"]
    return session


def test_pipecat() -> None:
    client = Client()
    audio = events.AudioConfiguration(
        input=events.AudioInput(
            format=events.PCMAudioFormat(),
            transcription=events.InputAudioTranscription(),
            turn_detection=events.SemanticTurnDetection(eagerness="low"),
            noise_reduction=events.InputAudioNoiseReduction(type="near_field"),
        ),
        output=events.AudioOutput(voice="marin", speed=1.1),
    )
    properties = events.SessionProperties(
        output_modalities=["audio"], instructions="Be kind.", audio=audio, tool_choice="auto"
    )
    session = updated(client, sent(events.SessionUpdateEvent(session=properties)))
    assert session["audio"]["input"]["turn_detection"]["eagerness"] == "low"
    content = [events.ItemContent(type="input_text", text="Hello")]
    item = events.ConversationItem(type="message", role="user", content=content)
    assert kinds(client.send(sent(events.ConversationItemCreateEvent(item=item)))) == [
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert client.items == [item.id]
    respond = events.ResponseCreateEvent(
        response=events.ResponseProperties(output_modalities=["audio"])
    )
    assert kinds(client.send(sent(respond))) == ["response.created"]
    item_id = client.speak("Good day.")[0]["item"]["id"]
    truncate = events.ConversationItemTruncateEvent(
        item_id=item_id, content_index=0, audio_end_ms=500
    )
    assert kinds(client.send(sent(truncate))) == ["conversation.item.truncated"]


def test_openai_agents_in_python() -> None:
    client = Client()
    model = OpenAIRealtimeWebSocketModel()
    settings: Any = {"instructions": "Be kind.", "voice": "ash", "tool_choice": "auto"}
    session = model._get_session_config(settings).model_dump(mode="json", exclude_unset=True)
    answer = updated(client, json.dumps({"type": "session.update", "session": session}))
    assert answer["audio"]["input"]["turn_detection"]["interrupt_response"] is True
    assert answer["audio"]["output"]["voice"] == "ash"
    assert answer["audio"]["input"]["transcription"]["model"] == "gpt-4o-mini-transcribe"
    tracing = {"type": "session.update", "session": {"type": "realtime", "tracing": "auto"}}
    assert updated(client, json.dumps(tracing))["tracing"] == "auto"


def test_openai_agents_in_javascript() -> None:
    client = Client()
    pcm = {"type": "audio/pcm", "rate": 24_000}
    tool = {"type": "function", "name": "f", "description": "", "parameters": {}, "strict": True}
    first = update(
        model="gpt-realtime",
        instructions="Be kind.",
        output_modalities=["audio"],
        audio={
            "input": {
                "format": pcm,
                "noise_reduction": None,
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "semantic_vad"},
            },
            "output": {"format": pcm, "speed": 1, "voice": "ash"},
        },
        tool_choice="auto",
        tools=[tool],
    )
    session = updated(client, json.dumps(first))
    assert (session["model"], session["tools"]) == ("gpt-realtime", [tool])
    respond = {"type": "response.create", "event_id": "agents_js_response_create_1"}
    client(respond)
    [error] = client({**respond, "event_id": "agents_js_response_create_2"})
    assert error["error"]["event_id"] == "agents_js_response_create_2"
    item_id = client.speak("Yes.")[0]["item"]["id"]
    assert client.retrieved(item_id)["content"][0]["transcript"] == "Yes."


def test_a_bridge_of_twilios_media_streams() -> None:
    client = Client()
    pcmu = {"format": {"type": "audio/pcmu"}}
    first = update(
        model="gpt-realtime",
        output_modalities=["audio"],
        audio={
            "input": {**pcmu, "turn_detection": {"type": "server_vad"}},
            "output": {**pcmu, "voice": "alloy"},
        },
        instructions="Be kind.",
    )
    assert updated(client, json.dumps(first))["audio"]["output"]["format"] == pcmu["format"]
