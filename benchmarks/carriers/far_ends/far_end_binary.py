"""Far ends with sound in binary: Vonage and Genesys AudioHook.

Documents, as `[...]` beside each behaviour:

    [vo]  developer.vonage.com/en/voice/voice-api/concepts/websockets
    [vo-t] developer.vonage.com, tutorial "Play audio into a WebSocket"
    [ge]  purecloudlabs/audiohook-reference-implementation, app/audiohook/src/protocol
    [ge-p] developer.genesys.cloud/devapps/audiohook, protocol reference
    [ge-w] help.mypurecloud.com, "What happens during a successful session ..."
"""

import json
import uuid
from typing import Any

from benchmarks.carriers.far_ends.far_end import CallFacts, FarEnd, Message
from offhook.media.pcm import PACKET_MS


class Vonage(FarEnd):
    """[vo]: events as text, L16 as binary, little-endian."""

    provider = "vonage"
    encodings = ("l16",)
    rates = (16_000, 8_000, 24_000)
    ROOM_MESSAGES = 3_072
    """[vo-t]: no more are kept, "around 60 seconds"."""
    room_ms = ROOM_MESSAGES * PACKET_MS

    def _start(self, now: float) -> None:
        content = {"content-type": f"audio/l16;rate={self.rate}"}
        self._send({"event": "websocket:connected", **content, **self.facts.parameters})

    def _send_sound(self, payload: bytes) -> None:
        self._out.append(payload)

    def receive(self, message: Message, now: float) -> None:
        if self.closed is not None:
            return
        if isinstance(message, bytes):
            if len(message) != 2 * self.player.frame:
                self._fault("sound that is not 20 ms")
            self._play(message, now)
            return
        read = self._read(message)
        if read is None:
            return
        match read.get("action"):
            case "clear":
                # Whether what waits for a notification is told is not documented: assumed not.
                self.player.clear()
                self._send({"event": "websocket:cleared"})
            case "notify" if isinstance(read.get("payload"), dict):
                self._mark(json.dumps(read["payload"]))
            case action:
                self._fault(f"unknown action {action}")

    def _send_mark(self, name: str) -> None:
        self._send({"event": "websocket:notify", "payload": json.loads(name)})

    def press(self, digit: str) -> None:
        self._send({"event": "websocket:dtmf", "digit": digit, "duration": 260})

    def hang_up(self) -> None:
        self.closed = "the caller hung up"


def _objects(items: Any) -> list[dict[str, Any]]:
    """Those of a list that are JSON objects."""
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


class Genesys(FarEnd):
    """[ge]: every message numbered, and telling the last number that came."""

    provider = "genesys"
    packet_ms = 200
    """1600 bytes, as seen in pipecat-ai/pipecat issue 3777."""
    PING_S = 5.0
    RATE_MESSAGES, BURST_MESSAGES = 5.0, 25
    """Binary messages a second, and at once [ge-p]."""

    def __init__(self, facts: CallFacts | None = None, **options: Any) -> None:
        super().__init__(facts or CallFacts(str(uuid.UUID(int=7))), **options)
        self.outputs: dict[str, Any] = {}
        """What the application gave back to the flow."""
        self._seq = 0
        self._server_seq = 0
        self._ping_at: float | None = None
        self._playing = False
        self._held = False
        self._allowed, self._allowed_at = float(self.BURST_MESSAGES), 0.0

    def open(self, now: float) -> None:
        """No media until the application has opened [ge-w]."""
        facts = self.facts
        media = [
            {"type": "audio", "format": "PCMU", "channels": channels, "rate": 8000}
            for channels in (["external", "internal"], ["external"], ["internal"])
        ]
        participant = {"id": str(uuid.UUID(int=9)), "ani": facts.caller, "aniName": ""}
        parameters = {
            "organizationId": facts.account,
            "conversationId": facts.call_id,
            "participant": {**participant, "dnis": facts.called},
            "media": media,
            "language": "en-US",
            "inputVariables": dict(facts.parameters),
        }
        self._message("open", parameters)

    def _start(self, now: float) -> None:
        self._ping_at = now

    def _message(self, kind: str, parameters: dict[str, Any]) -> None:
        self._seq += 1
        numbers = {"seq": self._seq, "serverseq": self._server_seq}
        position = {"position": f"PT{self._heard_ms / 1000:g}S", "parameters": parameters}
        identity = {"version": "2", "id": self.facts.stream_id, "type": kind}
        self._send({**identity, **numbers, **position})

    def tick(self, due: float) -> None:
        super().tick(due)
        if self.opened_at is None:
            return
        if self.player.sounding is not self._playing:
            self._playing = self.player.sounding
            self._message("playback_started" if self._playing else "playback_completed", {})
        if self._ping_at is not None and due >= self._ping_at:
            self._ping_at += self.PING_S
            self._message("ping", {} if self._seq < 3 else {"rtt": "PT0.05S"})

    def _send_sound(self, payload: bytes) -> None:
        if not self._held:
            self._out.append(payload)

    def receive(self, message: Message, now: float) -> None:
        if self.closed is not None:
            return
        if isinstance(message, bytes):
            if self.opened_at is None:
                self._fault("sound before opened")
            else:
                self._check_rate(now)
                self._play(message, now)
            return
        read = self._read(message)
        if read is not None and self._numbered(read):
            self._handle(str(read.get("type")), read["parameters"], now)

    def _check_rate(self, now: float) -> None:
        """[ge-p]: complained of; whether the sound is played all the same is assumed."""
        gained = (now - self._allowed_at) * self.RATE_MESSAGES
        self._allowed = min(self.BURST_MESSAGES, self._allowed + gained)
        self._allowed_at = now
        if self._allowed < 1:
            self._fault("more than 5 messages of sound a second")
            self._message("error", {"code": 429, "message": "Rate limit exceeded"})
        else:
            self._allowed -= 1

    def _numbered(self, read: dict[str, Any]) -> bool:
        """[ge]: all fields, the number one more than the last, no number of ours in the future."""
        sound = read.get("version") == "2" and read.get("id") == self.facts.stream_id
        if not sound or not isinstance(read.get("parameters"), dict):
            self._fault("a message without version 2, the session's id or parameters")
            return False
        seq, seen = read.get("seq"), read.get("clientseq")
        if seq != self._server_seq + 1 or not isinstance(seen, int) or seen > self._seq:
            self._fault("a message out of sequence")
            return False
        self._server_seq += 1
        return True

    def _handle(self, kind: str, parameters: dict[str, Any], now: float) -> None:
        match kind:
            case "opened" if self.opened_at is None:
                media = _objects(parameters.get("media"))
                if [medium.get("channels") for medium in media] != [["external"]]:
                    self._fault("opened without the one medium of the caller alone")
                self._begin(now)
                self._start(now)
            case "event":
                entities = _objects(parameters.get("entities"))
                if any(entity.get("type") == "barge_in" for entity in entities):
                    self.player.clear()
            case "disconnect":
                self._take_outputs(parameters)
                self._message("close", {"reason": "disconnect"})
            case "closed":
                self._take_outputs(parameters)
                self.closed = "closed"
            case "pong" | "pause" | "resume" | "updated":
                pass
            case _:
                self._fault(f"unknown message {kind}")

    def _take_outputs(self, parameters: dict[str, Any]) -> None:
        outputs = parameters.get("outputVariables")
        if isinstance(outputs, dict):
            self.outputs |= outputs

    def hold(self, held: bool) -> None:
        """The client pauses: no sound flows, either way."""
        self._held = self.player.paused = held
        if held:
            self._message("paused", {})
        else:
            start = f"PT{self._heard_ms / 1000:g}S"
            self._message("resumed", {"start": start, "discarded": "PT0S"})

    def press(self, digit: str) -> None:
        self._message("dtmf", {"digit": digit})

    def hang_up(self) -> None:
        """The application answers with closed."""
        self._tick_at = None
        self._message("close", {"reason": "end"})
