"""What is kept of one call: its sound, if it is recorded, and its words but for those withheld."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from offhook.media.leg import Leg
from offhook.media.line_recording import By, Change, LineRecording, NotRecorded, Wanted
from offhook.media.recording import Recorder
from offhook.media.recording_io import FinishedRecording, RecordingWriter
from offhook.pipeline.conversation.events import (
    CallEnded,
    CallerTurn,
    CallStarted,
    DetailNoted,
    Event,
    RecordingPaused,
    RecordingResumed,
    RecordingStarted,
    RecordingStopped,
    RoomTurn,
)
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.redact import MASK
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.config.server import Recording
from offhook.web.edge.calls.withheld import Withheld
from offhook.web.http.logs import for_recording, kind


class Recordings(Protocol):
    """What opens the files of calls."""

    def writer(self, recording: Recording) -> RecordingWriter:
        """Raises NotRecorded."""

    def count_failed(self) -> None: ...

    def recording_ready(self, call: str, recording: FinishedRecording) -> None:
        """Is called in another thread once a recording of a call is complete."""


class CallRecording:
    """Follows the recording of one call, whoever changes it."""

    def __init__(
        self,
        leg: Leg,
        recordings: Recordings,
        settings: Recording,
        agent: AgentSettings,
        sentences: Mapping[Occasion, str],
        *,
        goes_on: bool,
    ) -> None:
        """`agent` is the one that answers, and `sentences` are its own, for this call. A call that
        `goes_on` begins with no notice: the caller has heard it."""
        self._goes_on = goes_on
        self._leg, self._recordings, self._settings = leg, recordings, settings
        self._wanted: Wanted = agent.recorded(settings.enabled)
        self._emitted: Callable[[Event], None] | None = None
        self._has_words: Callable[[], bool] = lambda: False
        self._began = False
        self._before: list[tuple[Change, By, int]] = []
        """What has changed before the conversation began."""
        self._offset_ms = 0
        """By how much the file began later than the line."""
        self._path: Path | None = None
        self._withheld = Withheld(self._speaks)
        line = leg.recording = LineRecording()  # the line may have had another conversation
        line.report, line.withhold = self._report, self._withheld.withhold_secret
        line.pause_key = settings.pause_key
        line.notice = sentences.get(Occasion.RECORDED, settings.notice)
        line.on_demand = self._open
        if self._wanted != "never":
            line.open = self._open

    @property
    def path(self) -> str:
        """Returns the file of the sound; "" if the call was not recorded."""
        return str(self._path or "")

    @property
    def notice(self) -> str:
        """Returns what the caller hears before the agent's first words."""
        recording = self._leg.recording
        return recording.notice if recording.on and not self._goes_on else ""

    def begin(self) -> None:
        """Starts the recording if every call has one; the call continues if that fails."""
        if self._wanted == "always":
            try:
                self._leg.recording.start("settings")
            except NotRecorded as error:
                logger.error("{}: {}", self._leg.call_id, error)

    def follow(
        self, emit: Callable[[Event], None], has_words: Callable[[], bool] = lambda: False
    ) -> None:
        """Has changes be events of a conversation, once it has begun. `has_words` returns whether
        the agent's reply in progress has any."""
        self._emitted, self._has_words = emit, has_words

    def close(self) -> None:
        """Has the files finished. Idempotent."""
        recorder = self._leg.recording.recorder
        if recorder is not None and not recorder.closed:
            recorder.close()

    def kept(self, event: Event) -> Event:
        """Returns an event as it is kept."""
        return self._withheld.kept(event)

    def masked(self, collected: Mapping[str, Any]) -> Any:
        """Returns details of the caller without what was withheld."""
        return self._withheld.masked(collected)

    def note(self, event: Event) -> None:
        """Writes an event, as it is kept, into the timeline, and does what follows from it."""
        recorder = self._leg.recording.recorder
        if recorder is not None:
            fields = for_recording(asdict(event), self._settings.keys)
            at_ms = max(0, fields.pop("at_ms") - self._offset_ms)
            recorder.timeline.write(kind(event), at_ms, **fields)
            if isinstance(event, CallEnded):
                self.close()
        if isinstance(event, CallStarted):
            self._began = True
            for change in self._before:
                self._emit(*change)
        elif isinstance(event, CallerTurn | RoomTurn):
            self._leg.recording.end_turn()
        elif isinstance(event, DetailNoted):
            self._mask_detail(event)

    def _mask_detail(self, noted: DetailNoted) -> None:
        """Has records of the call, whatever writes them, have no detail that was withheld."""
        collected = self._leg.collected
        if noted.text != str(collected.get(noted.name, noted.text)):
            collected[noted.name] = MASK

    def _speaks(self) -> bool:
        return self._began and self._has_words()

    def _open(self) -> Recorder:
        leg = self._leg
        try:
            writer = self._recordings.writer(self._settings)
            name = leg.call_id if leg.part == 1 else f"{leg.call_id}-{leg.part}"
            ready = partial(self._recordings.recording_ready, leg.call_id)
            recorder = writer.open(name, time.time(), ready)
        except OSError as error:
            self._recordings.count_failed()
            raise NotRecorded(f"the call is not recorded: {error}") from error
        self._path, self._offset_ms = writer.path_of(recorder), leg.heard_ms
        leg.listen(leg.recording.tick)
        return recorder

    def _report(self, change: Change, by: By) -> None:
        change_now = change, by, self._leg.heard_ms
        if self._began:
            self._emit(*change_now)
        else:
            self._before.append(change_now)

    def _emit(self, change: Change, by: By, at_ms: int) -> None:
        if self._emitted is None:
            return
        event: Event
        match change:
            case "started":
                heard = self._leg.recording.notice if by != "settings" else self.notice
                event = RecordingStarted(at_ms, by, heard)
            case "stopped":
                event = RecordingStopped(at_ms, by)
            case "paused":
                event = RecordingPaused(at_ms, by)
            case "resumed":
                event = RecordingResumed(at_ms, by)
        self._emitted(event)
