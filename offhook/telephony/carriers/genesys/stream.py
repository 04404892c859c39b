"""Genesys Cloud AudioHook, protocol version 2, with the Audio Connector additions for bots.

Control messages are JSON text, audio is binary PCMU at 8000 Hz. Genesys Cloud is the client. Each
side numbers its own messages (`seq`) and gives the last number received from the other (`clientseq`
in ours). A session is

    open -> opened, then sound, ping -> pong, dtmf, paused, resumed, …, at last close -> closed

and only the client closes; we can request it (`disconnect`). For the call flow, a socket closed
without that exchange is a failure, so after `hang_up` wait for the Stopped that follows `closed`.

Of the media offered we choose PCMU with only the caller's channel ("external"), else PCMU with both
channels, and keep the caller's. A client that tests the connection opens a conversation with an
all-zero id: it is answered normally, but there is no call and so no Started.

`barge_in` empties the queue at Genesys. There are no marks: `playback_completed` reports the end,
never a position, so this stream does not acknowledge. Genesys accepts 5 binary messages a second on
average and bursts of 25, else it reports error 429: so ours are long. It accepts no DTMF.

Source: Genesys' "AudioHook protocol reference", and the messages as typed in its reference
implementations of AudioHook and of Audio Connector.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    JsonStream,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    Cleared,
    Event,
    Format,
    Held,
    Message,
    Sound,
    Started,
    Stopped,
)

MAX_MESSAGE_BYTES = 65_535
"""Maximum size of a message, the protocol's own limit for text, and 8 s of audio; with a longer one
the call ends."""
MAX_MEDIA = 16
"""Entries of an offer that are examined, of which at most four make sense; further ones are
ignored."""

VERSION = "2"
RATE = 8000
"""Hz."""
CALLER = "external"
CHANNELS = ([CALLER], [CALLER, "internal"], ["internal", CALLER])
"""Supported channel combinations, the best first."""
PROBE = "00000000-0000-0000-0000-000000000000"
"""Conversation id of a client that tests the connection."""

_DURATION = re.compile(r"PT([0-9]{0,9})(?:\.([0-9]{1,9}))?S")


class SessionState(Enum):
    NEW = auto()
    OPEN = auto()
    PROBED = auto()
    """Open, but without a call."""
    REFUSED = auto()
    """Asked to disconnect instead of opened; waiting for the client's close."""
    CLOSED = auto()


class GenesysStream(JsonStream):
    """One AudioHook session."""

    provider = "genesys"
    acknowledges = False
    clears = True
    lead_ms = 400
    packet_ms = 200

    def __init__(self) -> None:
        self._state = SessionState.NEW
        self._id = ""
        self._seq = 0
        self._clientseq = 0
        self._channels = [CALLER]
        self._position = 0
        """Samples elapsed on the stream's clock."""
        self._held = False
        self._disconnect_sent = False
        self._last_error = ""
        """The last error, the client's or ours, to report if the client closes."""

    def receive(self, data: Message) -> list[Event]:
        if self._state is SessionState.CLOSED:
            return []
        if isinstance(data, bytes):
            return self._sound(data)
        message = read_object(data, MAX_MESSAGE_BYTES)
        kind = text_of(message.get("type"), MAX_ID_CHARS) if message else ""
        if message is None or not kind:
            self.malformed += 1
            return []
        session = text_of(message.get("id"), MAX_ID_CHARS)
        if self._state is SessionState.NEW:
            self._id = session
        if kind in self.kinds and (not session or session != self._id):
            raise CarrierError(f"Genesys sent {kind} for another session")
        if not self._check_sequence(message):
            return []
        parameters = message.get("parameters")
        action = self.actions.get((self._state, kind))
        return action(self, parameters if isinstance(parameters, dict) else {}) if action else []

    def sound(self, payload: bytes) -> list[Message]:
        return [payload]

    def clear(self) -> list[Message]:
        """Ask Genesys to clear its queue; it does not acknowledge."""
        return [self._message("event", {"entities": [{"type": "barge_in", "data": {}}]})]

    def hang_up(self, reason: str) -> list[Message]:
        """Ask the client, once, to close the session."""
        if self._state is not SessionState.OPEN or self._disconnect_sent:
            return []
        self._disconnect_sent = True
        parameters = {"reason": "completed", "info": reason[:MAX_ID_CHARS]}
        return [self._message("disconnect", parameters)]

    def _message(self, kind: str, parameters: Mapping[str, Any]) -> str:
        self._seq += 1
        return json.dumps(
            {
                "version": VERSION,
                "type": kind,
                "seq": self._seq,
                "clientseq": self._clientseq,
                "id": self._id,
                "parameters": parameters,
            }
        )

    def _check_sequence(self, message: Json) -> bool:
        """Record a message's number. Returns False for one without a number, or with an old one."""
        seq = number(message.get("seq"))
        if seq is None or seq <= self._clientseq:
            self.malformed += 1
            return False
        self._clientseq = seq
        return True

    def _sound(self, payload: bytes) -> list[Event]:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a message of {len(payload)} bytes is too long")
        if self._state is SessionState.NEW:
            raise CarrierError("Genesys sent sound before open")
        whole = len(payload) - len(payload) % len(self._channels)
        heard = payload[self._channels.index(CALLER) : whole : len(self._channels)]
        if self._state is not SessionState.OPEN or not heard:
            return []
        began = self._position
        self._position += len(heard)
        return [Sound(heard, timestamp_ms=began * 1000 // RATE)]

    def _open(self, parameters: Json) -> list[Event]:
        conversation = text_of(parameters.get("conversationId"), MAX_ID_CHARS)
        medium = _select_media(parameters.get("media"))
        if conversation == PROBE:
            self._state = SessionState.PROBED
            return [self._opened(medium)]
        if not conversation or medium is None:
            self._state = SessionState.REFUSED
            lacking = "no conversationId" if medium else "no PCMU with the external channel"
            self._last_error = f"it offered {lacking}"
            info = {"reason": "error", "info": f"The open message has {lacking}."}
            return [Answer(self._message("disconnect", info))]
        self._state = SessionState.OPEN
        self._channels = medium["channels"]
        participant = parameters.get("participant")
        caller = participant if isinstance(participant, dict) else {}
        started = Started(
            self._id,
            conversation,
            Format("pcmu", RATE),
            Format("pcmu", RATE),
            caller=text_of(caller.get("ani"), MAX_ID_CHARS),
            called=text_of(caller.get("dnis"), MAX_ID_CHARS),
            parameters=texts_of(parameters.get("inputVariables")),
        )
        return [self._opened(medium), started]

    def _opened(self, medium: Json | None) -> Answer:
        media = [medium] if medium else []
        return Answer(self._message("opened", {"startPaused": False, "media": media}))

    def _unexpected(self, parameters: Json) -> list[Event]:
        raise CarrierError("Genesys sent another message before open")

    def _ping(self, parameters: Json) -> list[Event]:
        return [Answer(self._message("pong", {}))]

    def _close(self, parameters: Json) -> list[Event]:
        reason = text_of(parameters.get("reason"), MAX_ID_CHARS) or "end"
        text = f"Genesys closed the session: {reason}"
        if self._state is SessionState.PROBED:
            text = "Genesys only probed the connection"
        elif self._last_error:
            text += f" ({self._last_error})"
        self._state = SessionState.CLOSED
        return [Answer(self._message("closed", {})), Stopped(text)]

    def _dtmf(self, parameters: Json) -> list[Event]:
        return self._pressed(parameters.get("digit"))

    def _paused(self, parameters: Json) -> list[Event]:
        """Also sent without a change, in answer to a request of ours."""
        return self._hold(True)

    def _resumed(self, parameters: Json) -> list[Event]:
        return self._discarded(parameters) + self._hold(False)

    def _hold(self, held: bool) -> list[Event]:
        if held == self._held:
            return []
        self._held = held
        return [Held(held)]

    def _discarded(self, parameters: Json) -> list[Event]:
        """Advance the clock past audio that was discarded."""
        start, missing = _samples(parameters.get("start")), _samples(parameters.get("discarded"))
        if start is None or missing is None:
            self.malformed += 1
        else:
            self._position = max(self._position, start + missing)
        return []

    def _completed(self, parameters: Json) -> list[Event]:
        return [Cleared()]

    def _error(self, parameters: Json) -> list[Event]:
        """Record an error; the session continues (429: messages came too fast)."""
        code, said = number(parameters.get("code")), parameters.get("message")
        self._last_error = f"error {code} {text_of(said, MAX_ID_CHARS)}".strip()
        return []

    # Anything not in the table is ignored: update, playback_started, and future messages.
    actions: ClassVar[Mapping[tuple[SessionState, str], Callable[[Any, Json], list[Event]]]] = {
        (SessionState.NEW, "open"): _open,
        (SessionState.NEW, "ping"): _unexpected,
        (SessionState.NEW, "close"): _close,
        (SessionState.NEW, "dtmf"): _unexpected,
        (SessionState.NEW, "paused"): _unexpected,
        (SessionState.NEW, "resumed"): _unexpected,
        (SessionState.NEW, "discarded"): _unexpected,
        (SessionState.NEW, "playback_completed"): _unexpected,
        (SessionState.OPEN, "ping"): _ping,
        (SessionState.OPEN, "close"): _close,
        (SessionState.OPEN, "dtmf"): _dtmf,
        (SessionState.OPEN, "paused"): _paused,
        (SessionState.OPEN, "resumed"): _resumed,
        (SessionState.OPEN, "discarded"): _discarded,
        (SessionState.OPEN, "playback_completed"): _completed,
        (SessionState.OPEN, "error"): _error,
        (SessionState.PROBED, "ping"): _ping,
        (SessionState.PROBED, "close"): _close,
        (SessionState.REFUSED, "ping"): _ping,
        (SessionState.REFUSED, "close"): _close,
        (SessionState.REFUSED, "error"): _error,
    }
    kinds: ClassVar[frozenset[str]] = frozenset(kind for _, kind in actions)


def _select_media(offer: object) -> Json | None:
    """Return the best medium exactly as offered, as the client compares it, or None."""
    media = offer[:MAX_MEDIA] if isinstance(offer, list) else []
    offered = [
        medium["channels"]
        for medium in media
        if isinstance(medium, dict)
        and medium.get("type") == "audio"
        and medium.get("format") == "PCMU"
        and number(medium.get("rate")) == RATE
        and "channels" in medium
    ]
    for channels in CHANNELS:
        if channels in offered:
            return {"type": "audio", "format": "PCMU", "channels": channels, "rate": RATE}
    return None


def _samples(duration: object) -> int | None:
    """Samples in an ISO 8601 duration in seconds ("PT1.5S"); None if malformed."""
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if match is None or not (match[1] or match[2]):
        return None
    fraction = int((match[2] or "").ljust(9, "0"))
    return int(match[1] or 0) * RATE + fraction * RATE // 1_000_000_000
