"""Whether a line is recorded now: started, stopped, paused and resumed by whoever may.

    state              start     stop      pause     resume
    off                on        -         withheld  -
    on                 -         off       paused    -
    paused             -         withheld  -         on
    off and withheld   paused    -         -         off

While it is paused or withheld the file has silence, and what is said is kept nowhere else either:
a pause counts for the words of the call too, whether its sound is recorded or not.
"""

from collections.abc import Callable
from typing import Literal

from offhook.media.pcm import Pcm
from offhook.media.recording import Recorder

Change = Literal["started", "stopped", "paused", "resumed"]
By = Literal["settings", "agent", "operator", "key", "detail"]
"""Who has changed it: `detail` is a secret one that the agent is to find out."""
Wanted = Literal["always", "on_demand", "never"]


class NotRecorded(RuntimeError):
    """The line cannot be recorded; the message says why."""


def _unavailable() -> Recorder:
    raise NotRecorded('this call is never recorded: see [recording] enabled = "on_demand"')


class LineRecording:
    """The recording of one line. Without `open` set it is never recorded, but may be paused."""

    def __init__(self) -> None:
        self.open: Callable[[], Recorder] = _unavailable
        """Opens the file. Raises NotRecorded."""
        self.on_demand: Callable[[], Recorder] = _unavailable
        """The same for an agent that takes the call over and records, whether others do or not."""
        self.report: Callable[[Change, By], None] = lambda change, by: None
        """Is called after each change."""
        self.withhold: Callable[[str], None] = lambda words: None
        """Has words of the caller, such as a secret detail, kept nowhere for the rest of the
        call."""
        self.notice = ""
        """What the caller hears when it is recorded; empty: nothing."""
        self.pause_key = ""
        """The key with which either side of the line pauses and resumes; empty: none."""
        self.recorder: Recorder | None = None
        """Once it has been started."""
        self.paused = False
        self.on = False
        """Whether it has been started and not stopped, paused or not."""
        self._paused_by: By = "settings"
        self._ends_with_turn = False

    @property
    def state(self) -> Literal["on", "paused", "off"]:
        if self.on and not self.paused:
            return "on"
        return "paused" if self.paused else "off"

    def tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        """Record 20 ms; see `TickListener`."""
        if self.recorder is not None and not self.recorder.closed:
            self.recorder.tick(heard, said)

    def start(self, by: By) -> bool:
        """Begin or continue the recording; return whether it was off. Raises NotRecorded."""
        if self.on:
            return False
        if self.recorder is None:
            self.recorder = self.open()
        self.on = True
        self._apply()
        self.report("started", by)
        return True

    def stop(self, by: By) -> bool:
        """End the recording, which may be started again; return whether it was on."""
        if not self.on:
            return False
        self.on = False
        self._apply()
        self.report("stopped", by)
        return True

    def pause(self, by: By, *, until_turn: bool = False) -> bool:
        """Keep nothing from now on; return whether that is new. With `until_turn` the end of the
        caller's next turn resumes."""
        if self.paused:
            self._ends_with_turn = self._ends_with_turn and until_turn
            return False
        self.paused, self._paused_by, self._ends_with_turn = True, by, until_turn
        self._apply()
        self.report("paused", by)
        return True

    def resume(self, by: By) -> bool:
        """Keep again what is said; return whether it was paused."""
        if not self.paused:
            return False
        self.paused = self._ends_with_turn = False
        self._apply()
        self.report("resumed", by)
        return True

    def resume_if_paused_by(self, *by: By) -> None:
        """Resume a pause of one of these."""
        if self._paused_by in by:
            self.resume(self._paused_by)

    def end_turn(self) -> None:
        """The caller's turn is over."""
        if self._ends_with_turn:
            self.resume("agent")

    def press(self, key: str) -> bool:
        """Handle a key; return whether it was the one that pauses and resumes."""
        if not self.pause_key or key != self.pause_key:
            return False
        if not self.resume("key"):
            self.pause("key")
        return True

    def _apply(self) -> None:
        if self.recorder is None:
            return
        if self.on and not self.paused:
            self.recorder.resume()
        else:
            self.recorder.pause()
