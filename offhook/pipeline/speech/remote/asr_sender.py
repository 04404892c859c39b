"""What one connection to a recognizer's worker was sent of the utterances of a stream. Sans-io.

Each connection counts its own utterances and keeps its own positions, so that the same utterances
can be sent on two connections at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import Final, Partial, Word
from offhook.pipeline.speech.remote.asr_protocol import Command, RecognitionResult, command_text
from offhook.pipeline.speech.streams.utterance_queue import Utterance, UtteranceState

AUDIO_BYTES = 1 << 15
"""Maximum audio bytes of one message, 1 s; more is sent in several."""


@dataclass(eq=False)
class SentUtterance:
    utterance: Utterance
    number: int
    """Its number on this connection."""
    position: int
    """Where the audio not sent yet begins, in samples of the stream."""
    shift_ms: int
    """Offset in ms from the connection's times to the stream's."""
    finish_sent: bool = False


class UtteranceSender:
    def __init__(self) -> None:
        self._by_number: dict[int, SentUtterance] = {}
        self._sent: dict[Utterance, SentUtterance] = {}
        """Those without a final."""
        self._count = self._samples = 0
        self._since = self._until = 0
        """The newest audio of the stream that was sent without a gap, in samples of the stream."""
        self._to_cancel = False
        """Whether the utterance in progress on the connection must be cancelled."""

    @property
    def awaited(self) -> list[Utterance]:
        """Returns the utterances whose final is due on this connection."""
        return list(self._sent)

    @property
    def is_awaited(self) -> bool:
        return bool(self._sent)

    def next_message(self, utterances: Iterable[Utterance]) -> bytes | str | None:
        """Returns the next message for the worker."""
        if self._to_cancel:
            self._to_cancel = False
            return command_text(Command.CANCEL)
        for utterance in utterances:
            if (message := self._next_of(utterance)) is not None:
                return message
        return None

    def _next_of(self, utterance: Utterance) -> bytes | str | None:
        if utterance.state not in (UtteranceState.OPEN, UtteranceState.FINISHED):
            return None
        sent = self._sent.get(utterance)
        # A final of its beginning, which drops that audio, may have come by another connection.
        position = max(sent.position if sent is not None else 0, utterance.start)
        offset = 2 * (position - utterance.start)
        if piece := bytes(utterance.pcm[offset : offset + AUDIO_BYTES]):
            sent = sent or self._begin(utterance)
            sent.position = position + len(piece) // 2
            self._samples += len(piece) // 2
            if position != self._until:
                self._since = position
            self._until = sent.position
            return piece
        if utterance.state is UtteranceState.FINISHED and not (sent and sent.finish_sent):
            sent = sent or self._begin(utterance)
            sent.finish_sent = True
            return command_text(Command.FLUSH)
        return None

    def _begin(self, utterance: Utterance) -> SentUtterance:
        shift_ms = utterance.start * 1000 // RATE_IN - self._samples * 1000 // RATE_IN
        sent = SentUtterance(utterance, self._count, utterance.start, shift_ms)
        self._count += 1
        self._by_number[sent.number] = self._sent[utterance] = sent
        return sent

    def place_ms(self, end: int, before: int) -> int | None:
        """Returns where sample `end` of the stream is in the connection's audio, in ms; None unless
        so many samples before it were sent, or all that there are, without a gap."""
        if not self._since <= max(0, end - before) <= end <= self._until:
            return None
        return (end + self._samples - self._until) * 1000 // RATE_IN

    def has_sent(self, end: int) -> bool:
        """Returns whether the stream's audio was sent up to sample `end`."""
        return self._until >= end

    def receive(self, result: RecognitionResult) -> tuple[Utterance, Partial | Final] | None:
        """Returns the utterance and the event with times of the stream; None if it was cancelled in
        the meantime."""
        sent = self._by_number.get(result.utterance)
        if sent is None:
            return None
        event = result.event
        if isinstance(event, Final):
            shift = sent.shift_ms
            words = (Word(w.text, w.start_ms + shift, w.end_ms + shift) for w in event.words)
            event = replace(event, words=tuple(words))
        return sent.utterance, event

    def withdraw(self, utterance: Utterance) -> None:
        """Sends no more of it; results that still arrive are ignored."""
        if (sent := self._forget(utterance)) is not None:
            self._to_cancel |= not sent.finish_sent

    def complete(self, utterance: Utterance) -> None:
        """Its final has come."""
        self._forget(utterance)

    def _forget(self, utterance: Utterance) -> SentUtterance | None:
        if (sent := self._sent.pop(utterance, None)) is not None:
            del self._by_number[sent.number]
        return sent
