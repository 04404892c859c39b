"""Genesys Cloud AudioHook, version 2 of the protocol, with what Audio Connector adds for bots.

Control messages are JSON text, sound is binary PCMU at 8000 Hz. Genesys Cloud is the client. Each
side counts its own messages (`seq`) and says the last number seen of the other's (`clientseq` is in
ours). A session is

    open -> opened, then sound, ping -> pong, dtmf, paused, resumed, …, at last close -> closed

and it is always the client that closes; we can but ask for it (`disconnect`). A socket that closes
without the exchange is a failure to the call flow that we were called from, so after `hang_up` the
Stopped that comes with `closed` should be waited for.

Of the media offered we take PCMU with the caller's channel ("external") alone, else that with
both channels, and keep the caller's. A client that only probes the connection opens with a
conversation of all zeros: it is answered like any other, but there is no call and so no Started.

`barge_in` empties the queue at Genesys. There are no marks: `playback_completed` says that all was
played, never how far, so this stream does not acknowledge. Genesys takes 5 binary messages a second
in the long run and 25 at once, or else complains (error 429): so ours are long. It takes no DTMF
from a stream.

Source: Genesys' "AudioHook protocol reference", and the messages as typed in its reference
implementations of AudioHook and of Audio Connector.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    DIGITS,
    MAX_ID_CHARS,
    Json,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    Cleared,
    Event,
    Format,
    Held,
    Message,
    Pressed,
    Sound,
    Started,
    Stopped,
)

MAX_MESSAGE_BYTES = 65_535
"""The protocol's own bound, for text; 8 s of sound."""
MAX_MEDIA = 16
"""Media of an offer that are looked at; there are at most four sensible ones."""

VERSION = "2"
RATE = 8000
"""Hz."""
CALLER = "external"
CHANNELS = ([CALLER], [CALLER, "internal"], ["internal", CALLER])
"""What a medium may consist of, the best first."""
PROBE = "00000000-0000-0000-0000-000000000000"
"""The conversation of a client that tests the connection."""

_DURATION = re.compile(r"PT([0-9]{0,9})(?:\.([0-9]{1,9}))?S")


class SessionState(Enum):
    NEW = auto()
    OPEN = auto()
    PROBED = auto()
    """Open, but there is no call."""
    REFUSED = auto()
    """Asked to disconnect instead of opened; the client's close is awaited."""
    CLOSED = auto()


class GenesysStream(CarrierStream):
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
        """Samples that have gone by on the stream's clock."""
        self._held = False
        self._leaving = False
        self._complaint = ""
        """What was wrong, by the client or by us, should the client close."""

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
            raise CarrierError(f"Genesys sent {kind} of another session")
        if not self._counted(message):
            return []
        parameters = message.get("parameters")
        action = self.actions.get((self._state, kind))
        return action(self, parameters if isinstance(parameters, dict) else {}) if action else []

    def sound(self, payload: bytes) -> list[Message]:
        return [payload]

    def clear(self) -> list[Message]:
        """Nothing answers it."""
        return [self._say("event", {"entities": [{"type": "barge_in", "data": {}}]})]

    def hang_up(self, reason: str) -> list[Message]:
        """Asks once; the client closes the session upon it."""
        if self._state is not SessionState.OPEN or self._leaving:
            return []
        self._leaving = True
        parameters = {"reason": "completed", "info": reason[:MAX_ID_CHARS]}
        return [self._say("disconnect", parameters)]

    def _say(self, kind: str, parameters: Mapping[str, Any]) -> str:
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

    def _counted(self, message: Json) -> bool:
        """Note the number of a message; one without, or with one that was, is not taken."""
        seq = number(message.get("seq"))
        if seq is None or seq <= self._clientseq:
            self.malformed += 1
            return False
        self._clientseq = seq
        return True

    def _sound(self, payload: bytes) -> list[Event]:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a message of {len(payload)} bytes is longer than the allowed")
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
        medium = _select(parameters.get("media"))
        if conversation == PROBE:
            self._state = SessionState.PROBED
            return [self._opened(medium)]
        if not conversation or medium is None:
            self._state = SessionState.REFUSED
            lacking = "no conversationId" if medium else "no PCMU with the external channel"
            self._complaint = f"it offered {lacking}"
            info = {"reason": "error", "info": f"The open message has {lacking}."}
            return [Answer(self._say("disconnect", info))]
        self._state = SessionState.OPEN
        self._channels = medium["channels"]
        participant = parameters.get("participant")
        talker = participant if isinstance(participant, dict) else {}
        started = Started(
            self._id,
            conversation,
            Format("pcmu", RATE),
            Format("pcmu", RATE),
            account=text_of(parameters.get("organizationId"), MAX_ID_CHARS),
            caller=text_of(talker.get("ani"), MAX_ID_CHARS),
            called=text_of(talker.get("dnis"), MAX_ID_CHARS),
            parameters=texts_of(parameters.get("inputVariables")),
        )
        return [self._opened(medium), started]

    def _opened(self, medium: Json | None) -> Answer:
        media = [medium] if medium else []
        return Answer(self._say("opened", {"startPaused": False, "media": media}))

    def _too_early(self, parameters: Json) -> list[Event]:
        raise CarrierError("Genesys sent another message before open")

    def _ping(self, parameters: Json) -> list[Event]:
        return [Answer(self._say("pong", {}))]

    def _close(self, parameters: Json) -> list[Event]:
        reason = text_of(parameters.get("reason"), MAX_ID_CHARS) or "end"
        told = f"Genesys closed the session: {reason}"
        if self._state is SessionState.PROBED:
            told = "Genesys only probed the connection"
        elif self._complaint:
            told += f" ({self._complaint})"
        self._state = SessionState.CLOSED
        return [Answer(self._say("closed", {})), Stopped(told)]

    def _dtmf(self, parameters: Json) -> list[Event]:
        digit = text_of(parameters.get("digit"), 1).upper()
        if digit in DIGITS:
            return [Pressed(digit)]
        self.malformed += 1
        return []

    def _paused(self, parameters: Json) -> list[Event]:
        """Sent again when nothing changes: the answer to a request of ours for one."""
        return self._hold(True)

    def _resumed(self, parameters: Json) -> list[Event]:
        return self._discarded(parameters) + self._hold(False)

    def _hold(self, held: bool) -> list[Event]:
        if held == self._held:
            return []
        self._held = held
        return [Held(held)]

    def _discarded(self, parameters: Json) -> list[Event]:
        """Sound that never comes: the clock goes on past it."""
        start, missing = _samples(parameters.get("start")), _samples(parameters.get("discarded"))
        if start is None or missing is None:
            self.malformed += 1
        else:
            self._position = max(self._position, start + missing)
        return []

    def _completed(self, parameters: Json) -> list[Event]:
        return [Cleared()]

    def _complained(self, parameters: Json) -> list[Event]:
        """The session goes on after one (429: messages came too fast)."""
        code, said = number(parameters.get("code")), parameters.get("message")
        self._complaint = f"error {code} {text_of(said, MAX_ID_CHARS)}".strip()
        return []

    # What is not in the table changes nothing: update, playback_started, and messages to come.
    actions: ClassVar[Mapping[tuple[SessionState, str], Callable[[Any, Json], list[Event]]]] = {
        (SessionState.NEW, "open"): _open,
        (SessionState.NEW, "ping"): _too_early,
        (SessionState.NEW, "close"): _close,
        (SessionState.NEW, "dtmf"): _too_early,
        (SessionState.NEW, "paused"): _too_early,
        (SessionState.NEW, "resumed"): _too_early,
        (SessionState.NEW, "discarded"): _too_early,
        (SessionState.NEW, "playback_completed"): _too_early,
        (SessionState.OPEN, "ping"): _ping,
        (SessionState.OPEN, "close"): _close,
        (SessionState.OPEN, "dtmf"): _dtmf,
        (SessionState.OPEN, "paused"): _paused,
        (SessionState.OPEN, "resumed"): _resumed,
        (SessionState.OPEN, "discarded"): _discarded,
        (SessionState.OPEN, "playback_completed"): _completed,
        (SessionState.OPEN, "error"): _complained,
        (SessionState.PROBED, "ping"): _ping,
        (SessionState.PROBED, "close"): _close,
        (SessionState.REFUSED, "ping"): _ping,
        (SessionState.REFUSED, "close"): _close,
        (SessionState.REFUSED, "error"): _complained,
    }
    kinds: ClassVar[frozenset[str]] = frozenset(kind for _, kind in actions)


def _select(offer: object) -> Json | None:
    """The best medium, just as it was offered, for the client compares; None when none will do."""
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
    """Of an ISO 8601 duration in seconds ("PT1.5S"); None when it is no such."""
    told = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if told is None or not (told[1] or told[2]):
        return None
    fraction = int((told[2] or "").ljust(9, "0"))
    return int(told[1] or 0) * RATE + fraction * RATE // 1_000_000_000
