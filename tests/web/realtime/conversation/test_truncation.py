"""What remains of speech that was not heard to its end."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.conversation.truncation import MAX_EXCESS_MS, SpokenText
from tests.web.realtime.conversation.client import Client, kinds, one, respond, speech, truncate


def spoken(client: Client, text: str = "One two three four.") -> str:
    """The id of a message that was said, 500 ms a word."""
    client.turn()
    client.speak(text)
    output = one(client.done(), "response.done")["response"]["output"]
    item_id: str = output[0]["id"]
    return item_id


@pytest.mark.parametrize(
    ("at_ms", "words"),
    [(0, ""), (499, ""), (500, "One"), (1_600, "One two three"), (2_000, "One two three four.")],
)
def test_exactly_the_words_that_were_played_remain(at_ms: int, words: str) -> None:
    client = Client()
    item_id = spoken(client)
    [event] = client(truncate(item_id, at_ms))
    assert (event["type"], event["audio_end_ms"]) == ("conversation.item.truncated", at_ms)
    part = client.retrieved(item_id)["content"][0]
    assert part["transcript"] == words
    assert len(base64.b64decode(part.get("audio", ""))) == 48 * at_ms
    client(respond())
    assert client.context[-1].content[0].transcript == words  # type: ignore[union-attr]


def test_a_client_may_count_a_little_too_much() -> None:
    client = Client()
    item_id = spoken(client)
    [event] = client(truncate(item_id, 2_000 + MAX_EXCESS_MS))
    assert event["audio_end_ms"] == 2_000
    [event] = client({**truncate(item_id, 2_001 + MAX_EXCESS_MS), "event_id": "t"})
    assert event["error"]["code"] == "invalid_value"
    assert "already shorter than" in event["error"]["message"]
    assert event["error"]["event_id"] == "t"
    assert client.retrieved(item_id)["content"][0]["transcript"] == "One two three four."


def test_a_second_truncation_can_only_be_shorter() -> None:
    client = Client()
    item_id = spoken(client)
    client(truncate(item_id, 1_000))
    [event] = client(truncate(item_id, 1_800))
    assert event["audio_end_ms"] == 1_000
    client(truncate(item_id, 500))
    assert client.retrieved(item_id)["content"][0]["transcript"] == "One"


def test_a_truncation_before_the_end_of_the_response_ends_what_is_added() -> None:
    client = Client()
    client.turn()
    item_id = client.speak("One two three.")[0]["item"]["id"]
    assert kinds(client(truncate(item_id, 700))) == ["conversation.item.truncated"]
    assert client.speak(" Four five.") == []
    events = client.done()
    assert one(events, "response.done")["response"]["output"][0]["content"] == [
        {"type": "output_audio", "transcript": "One"}
    ]


def test_words_may_be_reported_when_they_are_played() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.report("response_text", client.response_id, "One two three four.")
    client.report("response_audio", client.response_id, speech(2_000))
    client.done()
    client.report("playout_started", client.response_id)
    client.report("response_word", client.response_id, "One", 500)
    client.report("response_word", client.response_id, "two", 1_000)
    item_id = client.report("interrupted", 1_010)[0]["item_id"]
    assert client.retrieved(item_id)["content"][0]["transcript"] == "One two"


def test_a_message_that_was_heard_to_its_end_is_not_truncated() -> None:
    client = Client(Transport.RTP)
    client.turn()
    client.speak("One two.")
    client.report("playout_started", client.response_id)
    client.done()
    assert kinds(client.report("interrupted", 1_000)) == ["output_audio_buffer.cleared"]


def test_a_deleted_message_is_not_truncated() -> None:
    client = Client(Transport.RTP)
    client.turn()
    item_id = client.speak("One two.")[0]["item"]["id"]
    client.report("playout_started", client.response_id)
    client({"type": "conversation.item.delete", "item_id": item_id})
    assert kinds(client.report("interrupted", 100))[-1] == "output_audio_buffer.cleared"
    [event] = client(truncate(item_id, 100))
    assert event["error"]["code"] == "item_truncate_invalid_item_id"


WORDS = st.lists(st.sampled_from(["a", "ab", "b", "It's", "été", "你好"]), min_size=1, max_size=12)


@given(WORDS, st.integers(0, 7_000))
def test_what_remains_is_what_was_said_until_then(words: list[str], at_ms: int) -> None:
    text = SpokenText(" ".join(words), samples=len(words) * 500 * 24)
    for i, word in enumerate(words):
        text.word(word, 500 * (i + 1))
    text.truncate(min(at_ms, text.duration_ms))
    assert text.remaining == " ".join(words[: at_ms // 500])


def test_a_number_that_is_spelt_out_counts_with_the_next_word() -> None:
    text = SpokenText("It is 12 degrees.", samples=24 * 4_000)
    for i, word in enumerate(["It", "is", "twelve", "degrees."]):
        text.word(word, 1_000 * (i + 1))
    text.truncate(3_500)
    assert text.remaining == "It is"
