"""The streams that a recording client offers, one m= line each, as a table of state × event →
state, actions (RFC 7866 §7.1, RFC 3264 §8). Sans-io.

    state       the offer says        → state       actions
    new         it sends              receiving     open, answer
    new         it pauses             paused        open, answer
    new         it has ended          ended         -
    receiving   it sends              receiving     answer
    receiving   it pauses             paused        answer
    receiving   it has ended          ended         close
    paused      it sends              receiving     answer
    paused      it pauses             paused        answer
    paused      it has ended          ended         close
    ended       it sends              receiving     open, answer: another stream in its place
    ended       it pauses             paused        open, answer
    ended       it has ended          ended         -

What cannot be received, such as video or a codec that we do not speak, is refused with port 0 and
has ended.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from offhook.telephony.sip.messages.sdp import Description, Media, Origin, SdpError, parse

MAX_STREAMS = 8
"""Maximum audio streams of a recorded call; further ones of an offer are refused with port 0. A
call of two people has two."""


class StreamState(Enum):
    NEW = auto()
    RECEIVING = auto()
    PAUSED = auto()
    """The far end sends nothing now (a=inactive): the recorded call is on hold."""
    ENDED = auto()


class StreamEvent(Enum):
    """What an offer says of a stream."""

    SENDS = auto()
    PAUSES = auto()
    ENDS = auto()


class StreamAction(Enum):
    OPEN = auto()
    """Open ports and a receiver."""
    ANSWER = auto()
    """Negotiate its codec, addresses and keys."""
    CLOSE = auto()


S, E, A = StreamState, StreamEvent, StreamAction
TABLE: dict[tuple[StreamState, StreamEvent], tuple[StreamState, tuple[StreamAction, ...]]] = {
    (S.NEW, E.SENDS): (S.RECEIVING, (A.OPEN, A.ANSWER)),
    (S.NEW, E.PAUSES): (S.PAUSED, (A.OPEN, A.ANSWER)),
    (S.NEW, E.ENDS): (S.ENDED, ()),
    (S.RECEIVING, E.SENDS): (S.RECEIVING, (A.ANSWER,)),
    (S.RECEIVING, E.PAUSES): (S.PAUSED, (A.ANSWER,)),
    (S.RECEIVING, E.ENDS): (S.ENDED, (A.CLOSE,)),
    (S.PAUSED, E.SENDS): (S.RECEIVING, (A.ANSWER,)),
    (S.PAUSED, E.PAUSES): (S.PAUSED, (A.ANSWER,)),
    (S.PAUSED, E.ENDS): (S.ENDED, (A.CLOSE,)),
    (S.ENDED, E.SENDS): (S.RECEIVING, (A.OPEN, A.ANSWER)),
    (S.ENDED, E.PAUSES): (S.PAUSED, (A.OPEN, A.ANSWER)),
    (S.ENDED, E.ENDS): (S.ENDED, ()),
}
LIVE = (StreamState.RECEIVING, StreamState.PAUSED)


@dataclass(frozen=True)
class OfferedStream:
    """One m= line of an offer."""

    index: int
    """Its place in the offer, and in the answer."""
    media: Media
    label: str
    """By which the metadata name it (RFC 4574); "" without one."""
    says: StreamEvent
    sdp: str
    """An offer of this stream alone."""


def offered_streams(offer: str) -> list[OfferedStream]:
    """Return the streams of an offer. Raises SdpError."""
    description = parse(offer)
    streams: list[OfferedStream] = []
    labels: set[str] = set()
    audio = 0
    for index, (written, media) in enumerate(
        zip(description.media, description.resolved(), strict=True)
    ):
        label = media.attribute("label") or ""
        if label and label in labels:
            raise SdpError(f"two streams have the label {label[:40]!r}")
        labels.add(label)
        audio += media.kind == "audio" and media.port > 0
        says = _event_of(media) if audio <= MAX_STREAMS else StreamEvent.ENDS
        alone = str(replace(description, media=(written,)))
        streams.append(OfferedStream(index, media, label, says, alone))
    return streams


def _event_of(media: Media) -> StreamEvent:
    if media.kind != "audio" or not media.port:
        return StreamEvent.ENDS
    sends = media.direction in ("sendonly", "sendrecv")
    return StreamEvent.SENDS if sends else StreamEvent.PAUSES


def refused(media: Media) -> Media:
    """Return the line that refuses a stream (RFC 3264 §6)."""
    return Media(media.kind, 0, media.protocol, media.formats[:1] or ("0",))


class OurDescription:
    """Our description of all streams, whose version increases with each change (RFC 3264 §8)."""

    def __init__(self, session_id: int) -> None:
        self._session_id = session_id
        self._version = 0
        self._sent: tuple[Media, ...] = ()
        self._address = "0.0.0.0"

    def combined(self, streams: list[str | Media]) -> str:
        """Return one description of streams that were described alone, as text, or are refused."""
        media: list[Media] = []
        for stream in streams:
            if isinstance(stream, Media):
                media.append(stream)
                continue
            alone = parse(stream)
            self._address = alone.connection or self._address
            media.extend(alone.media)
        if tuple(media) != self._sent:
            self._version += 1
            self._sent = tuple(media)
        origin = Origin(self._session_id, self._version, self._address)
        return str(Description(origin, connection=self._address, media=self._sent))


def labelled(description: str, label: str) -> str:
    """Return a description of one stream with its label (RFC 4574)."""
    if not label:
        return description
    alone = parse(description)
    [media] = alone.media
    return str(
        replace(alone, media=(replace(media, attributes=(*media.attributes, ("label", label))),))
    )
