"""The utterances of one stream on two connections: each has its own numbers and positions."""

import json

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import Final, Partial, Word
from offhook.pipeline.speech.remote.asr_protocol import RecognitionResult
from offhook.pipeline.speech.remote.asr_sender import AUDIO_BYTES, UtteranceSender
from offhook.pipeline.speech.streams.utterance_queue import Utterance, UtteranceQueue

SECOND = RATE_IN


def queue_of() -> UtteranceQueue[Utterance]:
    return UtteranceQueue(Utterance)


def sent_by(sender: UtteranceSender, queue: UtteranceQueue[Utterance]) -> list[bytes | str]:
    messages: list[bytes | str] = []
    while (message := sender.next_message(queue)) is not None:
        messages.append(message if isinstance(message, bytes) else json.loads(message)["type"])
    return messages


def test_the_same_audio_goes_to_both_and_the_second_starts_anew() -> None:
    queue, first, second = queue_of(), UtteranceSender(), UtteranceSender()
    queue.feed(np.zeros(SECOND, np.int16), 0.0)
    queue.finish(0.0)
    assert sent_by(first, queue) == [bytes(AUDIO_BYTES)[: 2 * SECOND], "flush"]
    (utterance,) = queue
    received = first.receive(RecognitionResult(0, Final("one", 1000)))
    assert received == (utterance, Final("one", 1000))
    queue.receive(*received)
    first.complete(utterance)
    assert not first.is_awaited
    queue.feed(np.ones(SECOND, np.int16), 0.0)
    queue.finish(0.0)
    (later,) = queue
    assert sent_by(second, queue)[-1] == "flush"
    words = (Word("two", 100, 200),)
    assert sent_by(first, queue)[-1] == "flush"
    by_first = first.receive(RecognitionResult(1, Final("two", 1000, (Word("two", 1100, 1200),))))
    by_second = second.receive(RecognitionResult(0, Final("two", 1000, words)))
    assert by_first is not None
    assert by_second is not None
    assert by_first[0] is by_second[0] is later
    assert by_first[1] == by_second[1] == Final("two", 1000, (Word("two", 1100, 1200),))


def test_a_beginning_with_a_final_is_not_sent_to_the_second() -> None:
    queue, first, second = queue_of(), UtteranceSender(), UtteranceSender()
    queue.feed(np.arange(2 * SECOND, dtype=np.int16), 0.0)
    sent_by(first, queue)
    (utterance,) = queue
    queue.receive(utterance, Final("a", 1500, continues=True))
    (rest,) = sent_by(second, queue)
    assert rest == np.arange(2 * SECOND, dtype="<i2")[3 * SECOND // 2 :].tobytes()
    assert sent_by(first, queue) == []


def test_a_cancelled_utterance_is_cancelled_where_it_is_in_progress() -> None:
    queue, first, second = queue_of(), UtteranceSender(), UtteranceSender()
    queue.feed(np.zeros(10, np.int16), 0.0)
    sent_by(first, queue)
    utterance = queue.cancel()
    assert utterance is not None
    for sender in (first, second):
        sender.withdraw(utterance)
    assert sent_by(first, queue) == ["cancel"]
    assert sent_by(second, queue) == []
    assert first.receive(RecognitionResult(0, Partial("late", 0, 0))) is None


def test_a_place_is_where_the_connection_has_it_without_a_gap() -> None:
    queue, first, second = queue_of(), UtteranceSender(), UtteranceSender()
    queue.feed(np.zeros(SECOND, np.int16), 0.0)
    queue.finish(0.0)
    sent_by(first, queue)
    assert first.place_ms(SECOND, 8 * SECOND) == 1000
    assert first.place_ms(SECOND + 1, SECOND) is None
    (utterance,) = queue
    queue.receive(utterance, Final("one", 1000))
    first.complete(utterance)
    queue.feed(np.zeros(SECOND, np.int16), 0.0)
    sent_by(first, queue)
    sent_by(second, queue)
    assert first.place_ms(2 * SECOND, 8 * SECOND) == 2000
    assert second.place_ms(2 * SECOND, SECOND) == 1000
    assert second.place_ms(2 * SECOND, SECOND + 1) is None
    assert first.has_sent(2 * SECOND)
    # An utterance that nobody was sent is a gap.
    cancelled = queue.cancel()
    assert cancelled is not None
    first.withdraw(cancelled)
    queue.feed(np.zeros(SECOND, np.int16), 0.0)
    queue.cancel()
    queue.feed(np.zeros(SECOND, np.int16), 0.0)
    assert not first.has_sent(4 * SECOND)
    sent_by(first, queue)
    assert first.place_ms(4 * SECOND, 2 * SECOND) is None
    assert first.place_ms(4 * SECOND, SECOND) == 3000


STEPS = st.one_of(st.integers(1, 3 * SECOND), st.sampled_from(["finish", "cancel", "a", "b"]))


def heard_of(messages: list[bytes | str]) -> list[bytes]:
    """The audio of each utterance, by its number on the connection."""
    heard: list[bytes] = []
    ended = True
    for message in messages:
        if ended:
            heard.append(b"")
        ended = not isinstance(message, bytes)
        if isinstance(message, bytes):
            heard[-1] += message
    return heard


@given(st.lists(STEPS, max_size=30))
@example([1, "finish", "finish", "a", "cancel"])
def test_however_sends_are_interleaved_both_get_every_utterance_whole(
    steps: list[int | str],
) -> None:
    queue = queue_of()
    senders = {"a": UtteranceSender(), "b": UtteranceSender()}
    got: dict[str, list[bytes | str]] = {"a": [], "b": []}
    for step in [*steps, "a", "b"]:
        if isinstance(step, int):
            queue.feed(np.full(step, step % 1000, np.int16), 0.0)
        elif step == "finish":
            queue.finish(0.0)
        elif step == "cancel":
            if (utterance := queue.cancel()) is not None:
                for sender in senders.values():
                    sender.withdraw(utterance)
        else:
            got[step] += sent_by(senders[step], queue)
    for name, sender in senders.items():
        whole = {}
        for number, audio in enumerate(heard_of(got[name])):
            # What was cancelled after all of it was sent is heard, and its result ignored.
            if (received := sender.receive(RecognitionResult(number, Final("", 0)))) is not None:
                whole[received[0]] = audio
        assert whole == {utterance: bytes(utterance.pcm) for utterance in queue}
