"""A room: several legs in one phase of the packet clock, each of which is sent what all others say.

    begin_tick, receive_tick   every member's leg receives its 20 ms, from its own jitter buffer
    send_tick                  they are mixed, and every leg is sent its mix

The mix of a tick is made of what was received in that tick: a room adds no tick of delay. A call
enters the room with its leg, in whose place the clock ticks the room. The agent of one member may
be the room's: it hears all who speak, and all hear it. What other members' agents say is for those
members alone.

What listens to a leg, such as its recording, gets what the member says and what he hears; of the
member with the room's agent, all who speak and the agent.

    role       hears            is heard by
    speak      all              all
    listen     all              nobody
    whisper    all              one member
    on hold    the hold sound   nobody
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import numpy as np
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import SAMPLES_IN, Pcm
from offhook.media.playout import Playout
from offhook.media.rooms.mixing import Limiter, Voice

Role = Literal["speak", "listen", "whisper"]
ROLES: tuple[Role, ...] = get_args(Role)
MAX_MEMBERS = 32
"""Members of one room; further ones are refused. Each costs a decoder, an encoder and a mix."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class MemberLine(Leg):
    """What one member says, for those who listen to him alone: nothing of the others is in it, and
    what he is sent counts as said to him."""

    def __init__(self, member: "Member") -> None:
        super().__init__(member.leg.call_id)
        self._member = member
        self._said: Pcm | None = None

    def pass_on(self, said: Pcm | None, now: float) -> None:
        """The member was sent this in a tick."""
        if self._listeners:
            member, self._said = self._member, said
            self.sound_in = member.leg.sound_in if member.is_audible else _SILENCE
            self.send_tick(now)

    def _receive(self, now: float) -> Pcm:
        return self.sound_in

    def _next_packet(self) -> Pcm | None:
        return self._said

    def _send(self, said: Pcm | None, now: float) -> None:
        pass


class Member:
    """One member of a room."""

    def __init__(self, name: str, leg: Leg, role: Role = "speak", to: str = "") -> None:
        """`to` is the name of the member who hears a whisper."""
        self.name, self.leg = name, leg
        self.role: Role = role
        self.to = to
        self.line = MemberLine(self)
        self.muted = False
        self.hand = False
        """Whether he, who is not heard by all, would like to be."""
        self.on_hold: Iterator[Pcm] | None = None
        """What is played while the room holds this member, 480 samples a tick; it must not end.
        None: the member is not on hold."""
        self.has_agent = False
        """Whether the agent of this leg is the room's."""
        self.notices = Playout()
        """What this member alone is to hear, whatever else."""
        self.voice, self.agent = Voice(), Voice()
        """The member, and what the agent of its leg says."""
        self.limiter, self.ear = Limiter(), Limiter()
        """What the member hears, and what the room's agent does."""

    @property
    def is_audible(self) -> bool:
        """Whether what the far end sends is for anybody: neither muted, nor music on hold."""
        leg = self.leg
        absent = self.muted or self.on_hold is not None or leg.held or leg.closed is not None
        return leg.connected and not absent and self.role != "listen"

    @property
    def speaks_to_all(self) -> bool:
        return self.role == "speak" and not self.muted

    def listen(self) -> None:
        """Take what was received in this tick, and what the agent of the leg says in it."""
        if self.is_audible:
            self.voice.receive(self.leg.sound_in)
        else:
            self.voice.silence()
        self.agent.say(self.leg.playout.pop())


class Room:
    """What the packet clock ticks in place of the members' legs."""

    def __init__(self, name: str) -> None:
        self.call_id = name
        self.members: dict[str, Member] = {}
        """By their names."""
        self._limiter = Limiter()
        self._paused = False
        """Whether the recordings of the members are paused."""

    def join(self, member: Member) -> None:
        """Take in a member, whose leg nothing else may tick from now on."""
        self.members[member.name] = member
        member.leg.use_mix(True)
        if self._paused:
            member.leg.recording.pause("operator")

    def leave(self, name: str) -> Member:
        """Let a member go; the leg sends what its own agent says again. Whispers for it are heard
        by nobody. Raises KeyError."""
        member = self.members.pop(name)
        member.leg.use_mix(False)
        return member

    # --- for the packet clock ---

    def begin_tick(self) -> None:
        self._for_each(lambda leg: leg.begin_tick())

    def unread_since(self, at: float | None) -> None:
        self._for_each(lambda leg: leg.unread_since(at))

    def receive_tick(self, now: float) -> None:
        self._for_each(lambda leg: leg.receive_tick(now))

    def send_ahead(self, now: float) -> None:
        """Nothing: what the others will say is not known."""

    def send_tick(self, now: float) -> None:
        """Mix what was received in this tick, and send each member's mix."""
        members = tuple(self.members.values())
        for member in members:
            try:
                member.listen()
            except Exception:
                self._fail(member)
        self._follow_pauses(members)
        voices = [member.voice for member in members if member.role == "speak"]
        voices += [member.agent for member in members if member.has_agent]
        heard = Voice.loudest(voices)
        whispers = [member for member in members if member.role == "whisper"]
        mix = self._limiter.mix([v.sound for v in heard if v.sound is not None])
        for member in members:
            try:
                self._send(member, heard, whispers, mix, now)
            except Exception:
                self._fail(member)

    def _follow_pauses(self, members: Sequence[Member]) -> None:
        """While the recording of the room's call is paused, so are those of its members."""
        leads = next((m.leg.recording for m in members if m.has_agent), None)
        if leads is None or leads.paused is self._paused:
            return
        self._paused = leads.paused
        for member in members:
            if not member.has_agent:
                recording = member.leg.recording
                recording.pause("operator") if self._paused else recording.resume("operator")

    def _send(
        self,
        member: Member,
        heard: Sequence[Voice],
        whispers: Sequence[Member],
        mix: Pcm | None,
        now: float,
    ) -> None:
        """Send a member `mix`, which is all that is heard, unless he hears less, or more."""
        if member.on_hold is not None:
            mix = next(member.on_hold)
        else:
            own = [one.voice.sound for one in whispers if one.to == member.name]
            if not member.has_agent:
                own.append(member.agent.sound)
            if member.notices.queued:
                own.append(member.notices.pop())
            if member.voice in heard or any(sound is not None for sound in own):
                sounds = [voice.sound for voice in heard if voice is not member.voice] + own
                mix = member.limiter.mix([sound for sound in sounds if sound is not None])
        member.line.pass_on(mix, now)
        if member.has_agent:
            ear, said = self._for_the_agent(member, heard), member.agent.sound
        else:
            ear, said = member.leg.sound_in, mix
        member.leg.send_mixed(mix, ear, said, now)

    def _for_the_agent(self, member: Member, heard: Sequence[Voice]) -> Pcm:
        """Return what the room's agent hears: all who speak, and the line of its own caller."""
        sounds = [
            one.leg.sound_in
            for one in self.members.values()
            if one.voice in heard or (one is member and one.is_audible)
        ]
        mix = member.ear.mix(sounds)
        return _SILENCE if mix is None else mix

    # --- failures ---

    def close(self, reason: str) -> None:
        """Close all members' legs: the clock has dropped the room."""
        for member in tuple(self.members.values()):
            member.leg.close(reason)

    def _for_each(self, do: Callable[[Leg], None]) -> None:
        for member in tuple(self.members.values()):
            try:
                do(member.leg)
            except Exception:
                self._fail(member)

    def _fail(self, member: Member) -> None:
        """Drop a member whose leg raised, so that its failure does not stop the others."""
        logger.exception("{}: leg failed", member.leg.call_id)
        self.leave(member.name)
        member.leg.close(End.LINE_FAILED)
