"""One room: whose call it is, who was brought into it, and what its record says of the members."""

from dataclasses import dataclass
from typing import Protocol

from offhook.media.leg import Leg, LegListener
from offhook.media.rooms.room import Member, Role, Room
from offhook.media.telephone_tones.tones import Cadence, Segment, sound_of
from offhook.pipeline.conversation.bot_io import BotCall
from offhook.pipeline.conversation.call_io import Call, Engines
from offhook.pipeline.conversation.directed_io import Infer
from offhook.pipeline.conversation.events import (
    Event,
    MemberLoweredHand,
    MemberRaisedHand,
    MemberTurn,
    WordsMissing,
)
from offhook.pipeline.conversation.overheard_io import OverheardSides
from offhook.web.edge.rooms.conferences_io import ConferenceLeg
from offhook.web.edge.rooms.relay_leg_io import RelayLeg
from offhook.web.edge.rooms.requests import CALLER

HAND_KEYS = "*5"
"""Keys with which a member who is not heard raises the hand, or lowers it again."""
RAISED = (Segment((1000,), 80), Segment((1300,), 80))
"""What the member hears then."""
LOWERED = (Segment((1300,), 80), Segment((1000,), 80))


class RoomCall(Protocol):
    """A call as rooms see it."""

    id: str
    has_started: bool
    """Whether the conversation has begun."""

    @property
    def leg(self) -> Leg: ...

    @property
    def conversation(self) -> Call | BotCall | None: ...

    @property
    def infer(self) -> Infer | None:
        """What answers outside the conversation; None if the agent is no language model."""

    @property
    def notes_by(self) -> Engines | None:
        """The engines that recognize what each member says; None if that is not kept."""

    def report(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Seat:
    """What a call that is being connected will be in a room."""

    room: str
    """Id of the call that is the room."""
    name: str
    role: Role
    to: str
    muted: bool
    number: str = ""


class HostedRoom:
    """A room, and whose call it is."""

    def __init__(self, call: RoomCall) -> None:
        self.call, self.room = call, Room(call.id)
        self.brought: dict[str, RoomCall] = {}
        """Calls that came with conversations of their own, by the names of their members."""
        self._words: OverheardSides | None = None
        """Once there was something to recognize."""
        self.is_over = False
        """Whether the call has ended, of which nothing is to be reported any more."""

    @property
    def has_company(self) -> bool:
        """Whether the caller would hear somebody without the agent."""
        others = self.room.members.values()
        return any(m.role == "speak" and m.name != CALLER and not m.on_hold for m in others)

    def announce(self, tones: Cadence) -> None:
        """Have all members hear something, where the room is."""
        if isinstance(self.call.leg, RelayLeg):
            return
        for member in self.room.members.values():
            if member.on_hold is None:
                member.notices.write(sound_of(tones))

    # --- words ---

    @property
    def has_words(self) -> bool:
        """Whether all who speak are recognized, each alone."""
        return self._words is not None and self._words.complete

    def follow_words(self) -> None:
        """Have all who may speak be recognized, each alone, unless that is one, whom the agent
        hears."""
        members = self.room.members.values()
        people = (member for member in members if not isinstance(member.leg, ConferenceLeg))
        speakers = [member for member in people if member.role == "speak"]
        if len(speakers) < 2 and self.call.conversation is not None:
            speakers = []
        if self._words is None:
            engines = self.call.notes_by
            if engines is None or not speakers:
                return
            self._words = OverheardSides(self.call.id, engines, self._say, self._miss)
        self._words.follow({member.line: member.name for member in speakers})

    async def finish_words(self) -> None:
        """Have what was said last recognized."""
        if self._words is not None:
            await self._words.close()
            self._words = None

    def _say(self, member: str, text: str, ago_ms: int) -> None:
        at_ms = self.call.leg.heard_ms
        if not self.is_over:
            self.call.report(MemberTurn(at_ms, member, text, max(0, at_ms - ago_ms)))

    def _miss(self, member: str, cause: str) -> None:
        self.call.report(WordsMissing(self.call.leg.heard_ms, member, cause))

    # --- hands ---

    def keys_of(self, name: str) -> LegListener:
        """Return what gets the keys of a member."""
        if isinstance(self.call.leg, RelayLeg):
            return _RelayedKeys(self.call.leg)
        return _MemberKeys(self, name)

    def toggle_hand(self, name: str) -> None:
        """A member has pressed the keys for it."""
        member = self.room.members.get(name)
        if member is not None and not member.speaks_to_all:
            self._set_hand(member, raised=not member.hand)

    def settle_hand(self, member: Member) -> None:
        """Who may speak has no hand raised any more."""
        if member.hand and member.speaks_to_all:
            self._set_hand(member, raised=False)

    def _set_hand(self, member: Member, *, raised: bool) -> None:
        member.hand = raised
        member.notices.write(sound_of(RAISED if raised else LOWERED))
        event = MemberRaisedHand if raised else MemberLoweredHand
        self.call.report(event(self.call.leg.heard_ms, member.name))


class _MemberKeys(LegListener):
    """The keys that a member presses in a room."""

    def __init__(self, hosted: HostedRoom, name: str) -> None:
        self._hosted, self._name = hosted, name
        self._pressed = ""

    def on_dtmf(self, digit: str) -> None:
        self._pressed = (self._pressed + digit)[-len(HAND_KEYS) :]
        if self._pressed == HAND_KEYS:
            self._hosted.toggle_hand(self._name)


class _RelayedKeys(LegListener):
    """The same where the room is in another process."""

    def __init__(self, leg: RelayLeg) -> None:
        self._leg = leg

    def on_dtmf(self, digit: str) -> None:
        self._leg.note(digit=digit)
