"""What the user says: speech, commits, and transcripts."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from offhook.media.pcm import Pcm
from offhook.web.realtime.conversation.actions import AppendAudio, ClearAudio, CommitAudio
from offhook.web.realtime.conversation.audio import AudioEncoder
from offhook.web.realtime.conversation.scope import ConversationScope, Transport
from offhook.web.realtime.protocol.conversation_session import ConversationVad
from offhook.web.realtime.protocol.items import InputAudio, InputText, SystemMessage, UserMessage
from offhook.web.realtime.protocol.server_events import TranscriptDeltas, new_id
from offhook.web.realtime.protocol.session_object import EventError

MIN_COMMIT_MS = 100
MAX_AWAITING = 32
"""Commits whose transcripts may be outstanding; a further commit gets the error
`rate_limit_exceeded`."""
TRANSCRIPTION = "conversation.item.input_audio_transcription"


class InputState(Enum):
    """State of the input audio buffer."""

    SILENT = auto()
    SPEAKING = auto()
    PAUSING = auto()
    """The speech has stopped; the turn is not over."""


class InputTrigger(Enum):
    """What changes the state of the input audio buffer."""

    START = auto()
    STOP = auto()
    END = auto()
    """The turn is over, by the turn detection, a commit, a clear, or because it was no speech."""


_S, _T = InputState, InputTrigger
INPUT_POLICY: dict[tuple[InputState, InputTrigger], tuple[InputState, str]] = {
    (_S.SILENT, _T.START): (_S.SPEAKING, "speech_started"),
    (_S.SILENT, _T.STOP): (_S.SILENT, ""),
    (_S.SILENT, _T.END): (_S.SILENT, ""),
    (_S.SPEAKING, _T.START): (_S.SPEAKING, ""),
    (_S.SPEAKING, _T.STOP): (_S.PAUSING, "speech_stopped"),
    (_S.SPEAKING, _T.END): (_S.SILENT, "speech_stopped"),
    (_S.PAUSING, _T.START): (_S.SPEAKING, "speech_started"),
    (_S.PAUSING, _T.STOP): (_S.PAUSING, ""),
    (_S.PAUSING, _T.END): (_S.SILENT, ""),
}
"""The next state and the event that is sent: each start is followed by one stop."""


@dataclass
class _Utterance:
    """The item of what is being said, or of what was committed and is not transcribed."""

    id: str = field(default_factory=lambda: new_id("item"))
    deltas: TranscriptDeltas = field(default_factory=TranscriptDeltas)


class InputBuffer:
    """The input audio buffer."""

    def __init__(self, scope: ConversationScope) -> None:
        self._scope = scope
        self._state = InputState.SILENT
        self._utterance: _Utterance | None = None
        self._awaiting: deque[_Utterance] = deque()
        self._samples_ms = 0.0
        """Audio appended since the last commit."""
        self._at_ms = 0
        """Last time reported."""

    @property
    def is_heard(self) -> bool:
        """Whether all that was committed is transcribed."""
        return not self._awaiting

    # --- client events; each raises EventError ---

    def append(self, audio: object) -> None:
        """Take audio of the client."""
        if self._scope.transport is Transport.RTP:
            words = "the audio of this session comes by RTP, not in events"
            raise EventError(words, "invalid_event_for_transport", "type")
        audio_format = self._scope.session.audio.input.format
        pcm = audio_format.decode(audio)
        if len(pcm):
            self._samples_ms += len(pcm) * 1000 / audio_format.rate
            self._scope.out.add(AppendAudio(pcm, audio_format.rate))

    def commit(self) -> None:
        """End the utterance now, for a client; its transcript follows."""
        if self._scope.transport is Transport.WEBSOCKET and self._samples_ms < MIN_COMMIT_MS:
            words = (
                f"the buffer is too small to commit: at least {MIN_COMMIT_MS} ms of audio, "
                f"and it has {self._samples_ms:.2f} ms"
            )
            raise EventError(words, "input_audio_buffer_commit_empty")
        if len(self._awaiting) >= MAX_AWAITING:
            words = f"{MAX_AWAITING} commits wait for their transcripts"
            raise EventError(words, "rate_limit_exceeded")
        self._scope.out.add(CommitAudio())
        self._step(InputTrigger.END)
        self._awaiting.append(self._commit())

    def clear(self) -> None:
        """Discard what was not committed."""
        self._scope.out.add(ClearAudio())
        self.discard()
        self._samples_ms = 0.0
        self._scope.out.send("input_audio_buffer.cleared")

    # --- reports ---

    def started(self, at_ms: int) -> None:
        """The user begins to speak."""
        if self._scope.session.turn_detection is not None:
            self._at_ms = at_ms
            self._step(InputTrigger.START)

    def stopped(self, at_ms: int) -> None:
        """The user pauses or has finished."""
        self._at_ms = at_ms
        self._step(InputTrigger.STOP)

    def discard(self) -> None:
        """What began was no speech, or is not wanted."""
        self._step(InputTrigger.END)
        self._utterance = None

    def partial(self, text: str) -> None:
        """The words so far, which only grow."""
        utterance = self._awaiting[0] if self._awaiting else self._utterance
        if utterance is None:
            if self._scope.session.turn_detection is None:
                return
            utterance = self._utterance = _Utterance()
        self._delta(utterance, utterance.deltas.partial(text))

    def turn(self, text: str, audio_s: float, audio: Pcm | None) -> bool:
        """The words of what was committed, or of a turn that ends now; returns whether it was a
        turn. `audio`: at 24 kHz, kept for a retrieval."""
        turn = not self._awaiting
        if turn:
            if self._scope.session.turn_detection is None:
                return False
            if not text:
                self.discard()
                return False
            self._at_ms += round(1000 * audio_s) if self._state is InputState.SPEAKING else 0
            self._step(InputTrigger.END)
            utterance = self._commit()
        else:
            utterance = self._awaiting.popleft()
        if audio is not None and self._scope.transport is Transport.WEBSOCKET:
            encoder = AudioEncoder(self._scope.session.audio.input.format)
            for data in encoder.encode(audio):
                self._scope.audio.append(utterance.id, data)
        self._complete(utterance, text, audio_s)
        return turn

    def fail(self, message: str) -> bool:
        """What was committed, or a turn that ends now, could not be transcribed; returns whether
        it was a turn."""
        turn = not self._awaiting
        if turn:
            if self._utterance is None:
                return False
            self._step(InputTrigger.END)
            utterance = self._commit()
        else:
            utterance = self._awaiting.popleft()
        if self._scope.session.audio.input.transcription is not None:
            error = {"type": "server_error", "code": "transcription_failed", "message": message}
            kind = f"{TRANSCRIPTION}.failed"
            self._scope.out.send(kind, item_id=utterance.id, content_index=0, error=error)
        return turn

    def idle(self, at_ms: int) -> bool:
        """The user says nothing for the idle timeout; returns whether that is of interest."""
        vad = self._scope.session.turn_detection
        if not isinstance(vad, ConversationVad) or vad.idle_timeout_ms is None or self._utterance:
            return False
        utterance = self._utterance = _Utterance()
        begin_ms = max(0, at_ms - vad.idle_timeout_ms)
        self._scope.out.send(
            "input_audio_buffer.timeout_triggered",
            item_id=utterance.id,
            audio_start_ms=begin_ms,
            audio_end_ms=at_ms,
        )
        words = f"The user has said nothing for {vad.idle_timeout_ms / 1000:g} seconds."
        note = SystemMessage(
            id=new_id("item"),
            type="message",
            role="system",
            content=(InputText(type="input_text", text=words),),
        )
        self._scope.items.add(note)
        self._complete(self._commit(), "", (at_ms - begin_ms) / 1000)
        return True

    def detection_changed(self) -> None:
        """The turn detection is another: what is being said can still be committed."""
        self._step(InputTrigger.END)

    # --- events ---

    def _step(self, trigger: InputTrigger) -> None:
        self._state, kind = INPUT_POLICY[self._state, trigger]
        if not kind:
            return
        if self._utterance is None:
            self._utterance = _Utterance()
        if kind == "speech_started":
            vad = self._scope.session.turn_detection
            padding_ms = vad.prefix_padding_ms if isinstance(vad, ConversationVad) else 0
            at = {"audio_start_ms": max(0, self._at_ms - padding_ms)}
        else:
            at = {"audio_end_ms": self._at_ms}
        self._scope.out.send(f"input_audio_buffer.{kind}", item_id=self._utterance.id, **at)

    def _commit(self) -> _Utterance:
        """Make what was said an item of the conversation."""
        utterance, self._utterance = self._utterance or _Utterance(), None
        self._samples_ms = 0.0
        items = self._scope.items
        kind = "input_audio_buffer.committed"
        self._scope.out.send(kind, item_id=utterance.id, previous_item_id=items.last_id)
        items.add(
            UserMessage(
                id=utterance.id,
                type="message",
                role="user",
                content=(InputAudio(type="input_audio"),),
            )
        )
        return utterance

    def _complete(self, utterance: _Utterance, text: str, audio_s: float) -> None:
        wanted = self._scope.session.audio.input.transcription is not None
        item = self._scope.items.get(utterance.id)
        if item is None:
            return  # deleted meanwhile
        part = InputAudio(type="input_audio", heard=text, transcript=text if wanted else None)
        self._scope.items.replace(item.model_copy(update={"content": (part,)}))
        if not wanted:
            return
        self._delta(utterance, utterance.deltas.final(text))
        self._scope.out.send(
            f"{TRANSCRIPTION}.completed",
            item_id=utterance.id,
            content_index=0,
            transcript=text,
            usage={"type": "duration", "seconds": round(audio_s, 3)},
        )

    def _delta(self, utterance: _Utterance, delta: str) -> None:
        if delta and self._scope.session.audio.input.transcription is not None:
            kind = f"{TRANSCRIPTION}.delta"
            self._scope.out.send(kind, item_id=utterance.id, content_index=0, delta=delta)
