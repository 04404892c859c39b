"""Why a call ended: as a sentence for people and as a label for metrics."""

from enum import ReprEnum
from typing import Self


class EndReason(str):
    """A sentence that says why a call ended, and the `End` it is counted as. Text from a far end or
    an agent counts as OTHER: as a metric label, each text would be a new time series."""

    _end: "End | None"

    def __new__(cls, text: str, end: "End | None" = None) -> Self:
        self = super().__new__(cls, text)
        self._end = end
        return self

    @property
    def end(self) -> "End":
        return self._end or End.OTHER

    def __add__(self, particulars: str) -> "EndReason":
        """Return the sentence with `particulars` appended, counted as the same `End`."""
        return EndReason(str(self) + particulars, self.end)

    @classmethod
    def of(cls, text: str) -> "EndReason":
        """Return `text` as an EndReason, itself if it already is one."""
        return text if isinstance(text, EndReason) else EndReason(text)


class End(EndReason, ReprEnum):
    """The reasons that metrics count. The value is the metric label, and the sentence for people
    where there is no detail to add."""

    # Failures:
    SERVER_FAILED = "the server failed"
    LINE_FAILED = "the line failed"
    CONNECTION_FAILED = "the connection failed"
    CONNECTION_LOST = "the connection is lost"
    NOTHING_HEARD = "nothing heard from the caller"
    NOT_CONNECTED = "the caller did not connect in time"
    NO_SOUND = "no sound came"
    NOT_PROTECTED = "the sound could not be protected"
    NO_COMMON_MEDIA = "no common media"
    FAR_END = "the far end"
    SOCKET = "the socket"
    CARRIER_SILENT = "the carrier does not"
    NO_STREAM = "the stream did not start"
    ASTERISK_LOST = "the connection to Asterisk broke"
    NETWORK = "the network"
    DESTINATION = "the destination"
    MODEL_FAILED = "the language model failed"
    # Deliberate ends:
    CALLER_HUNG_UP = "the caller hung up"
    AGENT_HUNG_UP = "the agent hung up"
    BOT_ENDED = "the bot ended"
    OTHER_END_HUNG_UP = "the other end hung up"
    HUNG_UP = "hung up"
    ASTERISK_HUNG_UP = "Asterisk hung up"
    ASTERISK_CLOSED = "Asterisk closed the connection"
    STREAM_CLOSED = "the carrier closed the stream"
    TRANSFERRED = "transferred"
    REPLACED = "replaced"
    RECONNECTED = "the caller reconnects"
    CONTINUED_ELSEWHERE = "continues at another server"
    GAVE_WAY = "nothing was said, and others wait for the line"
    TOO_LONG = "the call reached its longest duration"
    MACHINE_ANSWERED = "a machine answered"
    MESSAGE_LEFT = "the message was left"
    CALLER_SILENT = "the caller was silent"
    SHUTTING_DOWN = "the server is shutting down"
    SERVER_STOPS = "the server stops"
    # Results from the telephone network:
    NO_SUCH_NUMBER = "no such number"
    NOT_AVAILABLE = "not available"
    WRONG_NUMBER = "the number is wrong"
    BUSY = "busy"
    NO_ANSWER = "no answer"
    DECLINED = "declined"
    NUMBER_CHANGED = "the number has changed"
    MOVED = "moved"
    ANSWERED_ELSEWHERE = "answered elsewhere"
    NUMBER_INCOMPLETE = "the number is incomplete"
    REFUSED = "refused"
    NOT_ALLOWED = "not allowed"
    OTHER = "another"

    __repr__ = str.__repr__

    @property
    def end(self) -> "End":
        return self


FAILURES = tuple(End)[: tuple(End).index(End.MODEL_FAILED) + 1]
"""The ends that are failures, not somebody's intention."""
