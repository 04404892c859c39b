"""One call's events as entries of the store."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.pipeline.conversation.events import (
    CallEnded,
    CallerPartial,
    CallStarted,
    Event,
    TurnDiscarded,
)
from offhook.web.http.logs import WORDS, for_recording, kind
from offhook.web.records.entries import PART_POSITIONS, Began, Entry, Happened, Over

LEFT_OUT = (CallerPartial, TurnDiscarded)
"""Events that a final one makes up for."""
BY_THE_FAR_END = (
    *(End.CALLER_HUNG_UP, End.OTHER_END_HUNG_UP, End.STREAM_CLOSED),
    *(End.ASTERISK_HUNG_UP, End.ASTERISK_CLOSED),
)
IN_THE_ROW = frozenset({"at_ms", "headers", "variables", "statistics"})
"""Fields that are no part of an event in the store."""


class KeptSound(Protocol):
    """The recording of a call."""

    @property
    def path(self) -> str:
        """Returns its file; "" if there is none."""

    def masked(self, collected: Mapping[str, Any]) -> Any:
        """Returns details of the caller as they are kept."""


class KeptCall:
    """What a call does, handed on in order."""

    def __init__(
        self, leg: Leg, add: Callable[[Entry], None], sound: KeptSound | None, *, words: bool
    ) -> None:
        """`add` takes an entry and never waits. `sound` is None for a call that is never
        recorded."""
        self._leg = leg
        self._add = add
        self._words = words
        self._sound = sound
        # A line can have several conversations, one after the other, and far fewer events than
        # ticks.
        self._next = (leg.part - 1) * PART_POSITIONS + leg.ticks

    def note(self, event: Event, agent: str, now: float) -> None:
        """Takes an event. `agent` is the name of the agent that has begun the call, and `now` the
        time in seconds since 1970."""
        leg = self._leg
        if isinstance(event, LEFT_OUT):
            return
        if isinstance(event, CallStarted):
            sound = "" if self._sound is None else self._sound.path
            self._add(Began(leg.call_id, now, agent, asdict(leg.info), sound))
        fields = {
            name: value
            for name, value in for_recording(asdict(event), has_keys=False).items()
            if name not in IN_THE_ROW and (self._words or name not in WORDS)
        }
        self._add(Happened(leg.call_id, self._next, event.at_ms, kind(event), fields))
        self._next += 1
        if isinstance(event, CallEnded) and event.reason.end is not End.CONTINUED_ELSEWHERE:
            self._add(self._over(event, now))

    def _over(self, event: CallEnded, now: float) -> Over:
        leg, tokens, sound = self._leg, self._leg.tokens, self._sound
        collected = leg.collected if sound is None else sound.masked(leg.collected)
        taken = {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "cost": tokens.cost,
        }
        return Over(
            leg.call_id,
            now,
            str(event.reason),
            str(event.reason.end),
            "remote" if event.reason.end in BY_THE_FAR_END else "local",
            event.statistics,
            "" if sound is None else sound.path,
            taken,
            collected if self._words else None,
        )
