"""The rooms of one process.

A call is a room from when a second member joins until the last one has left. The room lives where
its call does: in the process, and the edge, that has the caller's line. Every member is a call of
that process, with an id of its own; hanging that up has the member leave. The room ends with its
call, and so do its members, but for calls that were brought in: these go on with their own agents.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from pipecat.frames.frames import LLMRunFrame

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End, EndReason
from offhook.media.rooms.room import MAX_MEMBERS, Member
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.media.tasks_io import TaskSet
from offhook.media.telephone_tones.tones import Segment, play, sound_of
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import (
    AgentInstructed,
    MemberChanged,
    MemberJoined,
    MemberLeft,
)
from offhook.pipeline.conversation.sentences import Occasion
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.web.config.rooms import BEEP
from offhook.web.config.rooms import Rooms as RoomSettings
from offhook.web.edge.rooms.conferences_io import ConferenceLeg, Conferences
from offhook.web.edge.rooms.hosted_io import HostedRoom, RoomCall, Seat
from offhook.web.edge.rooms.relay_leg_io import Elsewhere, RelayLeg
from offhook.web.edge.rooms.requests import (
    AGENT,
    CALLER,
    AgentRequest,
    MemberChange,
    RoomError,
    role_name,
    role_of,
)

HOLD_TONE = (Segment((425,), 200), Segment((), 4800))
"""What a member hears whom the room holds."""
JOINED = (Segment((600,), 100), Segment((800,), 120))
LEFT = (Segment((800,), 100), Segment((600,), 120))
LISTENED = (Segment((1400,), 200),)
"""What the caller hears when somebody begins to listen, if that is to be a tone."""
DISMISSED = End.HUNG_UP + " by request"


class UnknownMember(KeyError):
    """Raised when nobody in the room has that name."""


class Rooms:
    """Who is in which call."""

    def __init__(
        self,
        clock: PacketClock,
        calls: Mapping[str, RoomCall],
        settings: Callable[[], RoomSettings],
    ) -> None:
        """`calls` are all calls of the process, by their ids. `settings` returns the current ones,
        which may be reloaded."""
        self._clock, self._settings = clock, settings
        self._rooms: dict[str, HostedRoom] = {}
        """By the ids of their calls."""
        self._seats: dict[str, Seat] = {}
        """By the ids of members' calls, from when they are begun until they end."""
        self.relays: dict[str, RoomCall] = {}
        """What stands for calls of other processes, of which lines of this one are members."""
        self._calls = ChainMap(self.relays, cast(dict[str, RoomCall], calls))
        self.elsewhere: Elsewhere | None = None
        """The other processes, if there are any."""
        self.conferences = Conferences()
        self.tasks = TaskSet()

    async def close(self) -> None:
        await self.tasks.close()

    # --- coming ---

    def check(self, call: RoomCall, name: str, to: str) -> None:
        """Raises RoomError if the call cannot have another member of this name, who whispers to
        `to`, if that is somebody."""
        self._check_line(call)
        names = [member["name"] for member in self.members(call)]
        if name in names:
            raise RoomError(f"name: {name!r} is taken")
        if to and to not in names:
            raise RoomError(f"role: nobody here is called {to!r}")
        if len(names) > MAX_MEMBERS:
            raise RoomError(f"this call has {MAX_MEMBERS} members")

    def _check_line(self, call: RoomCall) -> None:
        """Raises RoomError."""
        if not isinstance(call.leg, RtpLeg | CarrierLeg | ConferenceLeg):
            raise RoomError("a call without a line of sound has no members, and is none")
        if call.leg.closed is not None or not call.leg.connected:
            raise RoomError("the call is not connected")
        if (seat := self._seats.get(call.id)) is not None:
            raise RoomError(f"the call is a member of {seat.room}")

    def expect(self, call_id: str, seat: Seat) -> Seat:
        """A call that is being connected is to be a member: no agent answers it. Returns its seat,
        under its id if another has come by the name meanwhile."""
        taken = {(one.room, one.name) for one in self._seats.values()}
        if (seat.room, seat.name) in taken:
            seat = replace(seat, name=call_id)
        self._seats[call_id] = seat
        return seat

    def expects(self, call_id: str) -> bool:
        """Whether a call is a member, or to be one."""
        return call_id in self._seats

    def forget(self, call_id: str, reason: str = End.NOT_CONNECTED) -> None:
        """A member's call is over, and has perhaps not come about."""
        seat = self._seats.pop(call_id, None)
        call = None if seat is None else self._calls.get(seat.room)
        if seat is not None and call is not None:
            call.report(MemberLeft(call.leg.heard_ms, seat.name, reason))

    async def attend(self, call: RoomCall) -> None:
        """Have a connected call be the member that it is expected to be, to its end."""
        seat = self._seats[call.id]
        of = self._calls.get(seat.room)
        if of is None or of.leg.closed is not None:
            await call.leg.hang_up(End.OTHER_END_HUNG_UP)
            return
        call.leg.attach(self._seat(of, call, seat).keys_of(seat.name))
        await call.leg.until_closed()

    def bring(self, of: RoomCall, call: RoomCall, seat: Seat) -> None:
        """Have another call be a member; its agent stands aside. Raises RoomError."""
        if call is of:
            raise RoomError("call: is this one")
        if call.id in self._rooms:
            raise RoomError(f"call: {call.id} has members of its own")
        self._check_line(call)
        _stand_aside(_conversation(call))
        self._seats[call.id] = seat
        self._seat(of, call, seat).brought[seat.name] = call

    def _seat(self, of: RoomCall, call: RoomCall, seat: Seat) -> HostedRoom:
        hosted = self._open(of)
        member = Member(seat.name, call.leg, seat.role, seat.to)
        member.muted = seat.muted
        self._clock.remove(call.leg)
        hosted.room.join(member)
        role = role_name(seat.role, seat.to)
        of.report(MemberJoined(of.leg.heard_ms, seat.name, role, call.id, seat.number))
        hosted.follow_words()
        if seat.role != "speak":
            self._notify(hosted)
        elif self._settings().announce == BEEP:
            hosted.announce(JOINED)
        return hosted

    def _notify(self, hosted: HostedRoom) -> None:
        """Have the caller hear that somebody listens, where the operator wants that."""
        notice, conversation = self._settings().listen_notice, hosted.call.conversation
        if not notice:
            return
        if notice == BEEP or not isinstance(conversation, Call) or conversation.away:
            hosted.room.members[CALLER].notices.write(sound_of(LISTENED))
        else:
            self.tasks.spawn(conversation.say(notice), f"notice {hosted.call.id}")

    def _open(self, call: RoomCall) -> HostedRoom:
        """Have a call be a room, if it is none."""
        if (hosted := self._rooms.get(call.id)) is not None:
            return hosted
        hosted = self._rooms[call.id] = HostedRoom(call)
        caller = Member(CALLER, call.leg)
        caller.has_agent = True
        self._clock.replace(call.leg, hosted.room)
        hosted.room.join(caller)
        return hosted

    # --- being there ---

    def members(self, call: RoomCall) -> list[dict[str, Any]]:
        """Return who is in a call, and who is on the way."""
        hosted = self._rooms.get(call.id)
        joined = [Member(CALLER, call.leg)] if hosted is None else hosted.room.members.values()
        shown = [_shown(one) for one in joined if not isinstance(one.leg, ConferenceLeg)]
        there = {member.leg.call_id for member in joined}
        shown += [
            _coming(call_id, seat)
            for call_id, seat in self._seats.items()
            if seat.room == call.id and call_id not in there
        ]
        conversation = call.conversation
        if conversation is not None:
            away = isinstance(conversation, Call) and conversation.absence.aside
            shown.append({"name": AGENT, "state": "away" if away else "joined"})
        return shown

    def change(self, call: RoomCall, name: str, change: MemberChange) -> dict[str, Any]:
        """Change what a member may do. Raises UnknownMember, RoomError."""
        hosted = self._rooms.get(call.id)
        member = None if hosted is None else hosted.room.members.get(name)
        if hosted is None or member is None:
            raise UnknownMember(name)
        if change.role is not None:
            role, to = role_of(change.role)
            if name == CALLER:
                raise RoomError("role: that of the caller is always speak")
            if to and (to not in hosted.room.members or to == name):
                raise RoomError(f"role: nobody else here is called {to!r}")
            member.role, member.to = role, to
        if change.muted is not None:
            member.muted = change.muted
        if change.on_hold is not None:
            member.on_hold = play(HOLD_TONE) if change.on_hold else None
        state = role_name(member.role, member.to), member.muted, member.on_hold is not None
        call.report(MemberChanged(call.leg.heard_ms, name, *state))
        hosted.settle_hand(member)
        self._settle(hosted)
        return _shown(member)

    # --- the agent ---

    def instruct(self, call: RoomCall, asked: AgentRequest) -> None:
        """Do with the agent of a call what the operator asks. Raises RoomError."""
        conversation = _conversation(call)
        if asked.action == "leave":
            hosted = self._rooms.get(call.id)
            if hosted is None or not hosted.has_company:
                raise RoomError("nobody would be with the caller: let a member in who speaks")
            _stand_aside(conversation)
            return
        if asked.action == "return":
            self._come_back(conversation)
            return
        if conversation.absence.aside:
            raise RoomError("the agent has left the call")
        if asked.say:
            self.tasks.spawn(conversation.say(asked.say), f"say {call.id}")
        elif call.infer is None:
            raise RoomError("message: this agent has no language model that reads messages")
        else:
            message: Any = {"role": "system", "content": asked.message}
            conversation.context.add_message(message)
            if asked.answers:
                conversation.queue(LLMRunFrame())
        text = asked.say or asked.message
        call.report(AgentInstructed(call.leg.heard_ms, text, spoken=bool(asked.say)))

    def _come_back(self, conversation: Call) -> None:
        """The agent goes on; what it was to say before is out of date."""
        if conversation.absence.aside:
            conversation.hearing.interrupt()
            conversation.absence.come_back()
            text = conversation.sentence(Occasion.RESUMED)
            self.tasks.spawn(conversation.say(text), f"hand back {conversation.leg.call_id}")

    def is_recorded(self, call_id: str) -> bool:
        """Whether the call is recorded of which another is to be a member."""
        of = self._calls.get(self._seats[call_id].room)
        return of is not None and of.leg.recording.on

    def has_words(self, call_id: str) -> bool:
        """Whether the members of a call are recognized each alone."""
        hosted = self._rooms.get(call_id)
        return hosted is not None and hosted.has_words

    async def finish_words(self, call_id: str) -> None:
        """Have what members have said last in a call recognized: it is about to end."""
        if (hosted := self._rooms.get(call_id)) is not None:
            await hosted.finish_words()

    # --- leaving ---

    def dismiss(self, call: RoomCall, name: str) -> str:
        """Have a member leave. Returns the id of the member's call, which is to be hung up; "" for
        one that was brought in: it goes on with its own agent. Raises UnknownMember, RoomError."""
        if name == CALLER:
            raise RoomError("without the caller there is no call: DELETE that")
        hosted = self._rooms.get(call.id)
        if hosted is not None and name in hosted.brought:
            self._release(hosted, name)
            self._left(hosted, name, DISMISSED, spoke=True)
            return ""
        for call_id, seat in self._seats.items():
            if (seat.room, seat.name) == (call.id, name):
                return call_id
        raise UnknownMember(name)

    def leave(self, call: RoomCall) -> None:
        """A call is over: if it was a room that ends, if it was a member that leaves."""
        if (hosted := self._rooms.get(call.id)) is not None:
            self._end(hosted)
            return
        seat = self._seats.pop(call.id, None)
        if seat is not None and (hosted := self._rooms.get(seat.room)) is not None:
            hosted.brought.pop(seat.name, None)
            spoke = seat.role == "speak"
            if seat.name in hosted.room.members:  # its line has not failed
                spoke = hosted.room.leave(seat.name).role == "speak"
            self._left(hosted, seat.name, call.leg.closed or End.OTHER_END_HUNG_UP, spoke=spoke)

    def _release(self, hosted: HostedRoom, name: str) -> None:
        """A call that was brought in goes on with its own agent."""
        call = hosted.brought.pop(name)
        hosted.room.leave(name)
        self._seats.pop(call.id, None)
        self._clock.add(call.leg)
        if isinstance(call.conversation, Call):
            self._come_back(call.conversation)

    def _left(self, hosted: HostedRoom, name: str, reason: EndReason, *, spoke: bool) -> None:
        hosted.call.report(MemberLeft(hosted.call.leg.heard_ms, name, str(reason)))
        self._settle(hosted)
        if spoke and hosted.call.leg.closed is None and self._settings().announce == BEEP:
            hosted.announce(LEFT)

    def _settle(self, hosted: HostedRoom) -> None:
        """Nobody is left in silence: without people the agent goes on. Without members the call is
        one line again, and costs no more than that."""
        call = hosted.call
        if not hosted.has_company and isinstance(call.conversation, Call):
            self._come_back(call.conversation)
        hosted.follow_words()
        if set(hosted.room.members) == {CALLER}:
            self.tasks.spawn(hosted.finish_words(), f"words {call.id}")
            del self._rooms[call.id]
            hosted.room.leave(CALLER)
            self._clock.replace(hosted.room, call.leg)
            if isinstance(call.leg, ConferenceLeg | RelayLeg):
                call.leg.close(End.OTHER_END_HUNG_UP)

    def _end(self, hosted: HostedRoom) -> None:
        """The room ends with its call."""
        hosted.is_over = True
        self.tasks.spawn(hosted.finish_words(), f"words {hosted.call.id}")
        for name in tuple(hosted.brought):
            self._release(hosted, name)
        del self._rooms[hosted.call.id]
        self._clock.replace(hosted.room, hosted.call.leg)
        for name in tuple(hosted.room.members):
            member = hosted.room.leave(name)
            if name != CALLER:
                self._seats.pop(member.leg.call_id, None)
                self._clock.add(member.leg)
                member.leg.close(End.OTHER_END_HUNG_UP)


def _conversation(call: RoomCall) -> Call:
    """Return the conversation with an agent that may leave and come back. Raises RoomError."""
    conversation = call.conversation
    if not isinstance(conversation, Call) or not call.has_started:
        raise RoomError("no agent has this call now")
    if conversation.end_reason.end is End.TRANSFERRED:
        raise RoomError("the caller was transferred: the agent has left the call for good")
    return conversation


def _stand_aside(conversation: Call) -> None:
    if not conversation.absence.aside:
        conversation.hearing.interrupt()
        conversation.absence.stand_aside()


def _shown(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "call_id": member.leg.call_id,
        "state": "joined",
        "role": role_name(member.role, member.to),
        "muted": member.muted,
        "on_hold": member.on_hold is not None,
        "hand": member.hand,
    }


def _coming(call_id: str, seat: Seat) -> dict[str, Any]:
    role = role_name(seat.role, seat.to)
    there = {"name": seat.name, "call_id": call_id, "state": "connecting", "role": role}
    return {**there, "muted": seat.muted, "on_hold": False, "hand": False}
