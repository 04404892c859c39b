"""One queue: who waits, in which order, and which member is rung for whom. Sans-io; times are
seconds since 1970, as several servers may share a queue.

    caller     waits → is offered to members → is connected, and no longer in the queue
               leaves: hangs up, waits for too long, is called back
               is not reached when called back: keeps the place, and is called again after
               CALLBACK_AGAIN_S, CALLBACK_TRIES times in all
    member     free → rung for a caller → speaks → wraps up → free
               declined or was not reached: rests for REST_S, and the caller is offered to others

A server that has callers here renews them; those of one that has died keep their places for KEPT_S,
in which they can come back at another server, and are offered to nobody meanwhile.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import heapify, heapreplace
from statistics import mean
from typing import Any, Literal, Self

from offhook.media.untrusted_json import read_json

Strategy = Literal["longest_idle", "round_robin", "all"]

LEASE_S = 10.0
"""Time in s after which a server that has not renewed its callers counts as dead."""
KEPT_S = 180.0
"""Time in s for which the places of its callers are kept."""
REST_S = 15.0
"""Time in s for which a member who has declined, or was not reached, is not rung."""
CALLBACK_TRIES = 3
"""Times that a caller is called back in vain before the place is given up."""
CALLBACK_AGAIN_S = 120.0
"""Time in s after which a caller who was not reached is called back again; others go first."""
MAX_HANDLED = 20
"""Calls whose lengths make the waiting time that is announced; older ones do not count."""
LATE_S = 2.0
"""Longest time in s from when a member is free until a caller is offered that counts for how long
members need."""
MIN_LEFT = 0.1
"""Share of the usual time that a member is expected to need at least, however long it is now."""


@dataclass
class Ticket:
    """The place of one caller."""

    id: str
    call: str
    """Id of the call; of one who is to be called back, of the call that is over."""
    caller: str
    joined: float
    priority: int = 0
    server: str = ""
    """Of which the call is."""
    renewed: float = 0.0
    offered: list[str] = field(default_factory=list)
    """Members who are rung for it now."""
    passed: dict[str, float] = field(default_factory=dict)
    """Members who have passed it on, and when: others are tried first."""
    agent: str = ""
    """Name of the agent with whose voice a caller is called back."""
    calls_back: bool = False
    """Whether the caller has hung up, and is called back when it is its turn."""
    tries: int = 0
    """How often the caller was called back in vain."""
    due: float = 0.0
    """When the caller may be called back again."""


@dataclass
class Member:
    paused: bool = False
    ticket: str = ""
    """Caller for whom the member is rung, or with whom the member speaks; "": none."""
    speaks: bool = False
    since: float = 0.0
    """When the state began: of one who is free, the end of the last call."""
    rung_at: float = 0.0
    """Since when the member is there for the caller: rung, briefed, and speaking."""
    rests_until: float = 0.0
    """Until when nobody is offered: wrapping up, or resting."""
    server: str = ""
    renewed: float = 0.0
    phones: dict[str, float] | None = None
    """The servers at which phones of an extension are registered, and when they said so last; None
    of a member who is called elsewhere."""

    @property
    def is_reached(self) -> bool:
        """Whether the member can be rung."""
        return self.phones is None or bool(self.phones)

    def is_free(self, now: float) -> bool:
        there = self.is_reached and not self.paused
        return there and not self.ticket and now >= self.rests_until

    def state(self, now: float) -> str:
        """Return "speaking", "ringing", "paused", "no_phone", "wrap_up" or "ready"."""
        if self.ticket:
            return "speaking" if self.speaks else "ringing"
        if self.paused:
            return "paused"
        if not self.is_reached:
            return "no_phone"
        return "wrap_up" if now < self.rests_until else "ready"


class Queue:
    """The state of one queue; `members` are those of the configuration."""

    def __init__(self, members: Iterable[str], strategy: Strategy, wrap_up_s: float) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.members = {address: Member() for address in members}
        self._elsewhere: dict[str, Member] = {}
        """Members that only the configuration of other servers has."""
        self.handled: list[float] = []
        """Time in s that members needed for each of the last calls, from ringing to wrapping up,
        with what they spent in vain before it: on callers who hung up, and resting."""
        self.in_vain = 0.0
        """Such time in s since the last call."""
        self.setups: list[float] = []
        """Time in s from ringing to the acceptance of each of the last calls."""
        self.last = ""
        """The member whom a caller was offered last."""
        self._strategy, self._wrap_up_s = strategy, wrap_up_s

    # --- callers ---

    @property
    def order(self) -> list[Ticket]:
        """Who waits, the first first."""
        return sorted(self.tickets.values(), key=lambda t: (-t.priority, t.joined, t.id))

    def join(self, ticket: Ticket, now: float) -> None:
        """Somebody waits; with the id of a ticket that is there, in its place."""
        before = self.tickets.get(ticket.id)
        if before is not None:
            self._withdraw(before, now)
            ticket.joined, ticket.priority = before.joined, before.priority
            ticket.passed = before.passed
        ticket.renewed = now
        self.tickets[ticket.id] = ticket

    def leave(self, ticket_id: str, now: float) -> None:
        """A caller waits no longer; members who are rung for it are free."""
        if (ticket := self.tickets.pop(ticket_id, None)) is not None:
            self._withdraw(ticket, now)

    def not_reached(self, ticket_id: str, now: float) -> bool:
        """A caller was called back in vain, and members who were kept free for it are free; return
        whether it is tried again."""
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            return False
        self._withdraw(ticket, now)
        ticket.tries, ticket.due = ticket.tries + 1, now + CALLBACK_AGAIN_S
        if ticket.tries >= CALLBACK_TRIES:
            self.leave(ticket_id, now)
        return ticket_id in self.tickets

    def position(self, ticket_id: str) -> int:
        """Return the place of a caller, the first is 1; 0: it does not wait."""
        ids = [ticket.id for ticket in self.order]
        return ids.index(ticket_id) + 1 if ticket_id in ids else 0

    def wait_s(self, position: int, now: float) -> float | None:
        """Return for how long whoever has this place is going to wait: members need as long for
        each caller, and until they accept one, as for the last ones. None: no call has ended, or
        nobody is there."""
        there = {a: m for a, m in self.members.items() if m.is_reached and not m.paused}
        if not (self.handled and self.setups and there):
            return None
        usual, setup = mean(self.handled), mean(self.setups)
        free_at = [self._free_at(a, m, usual, now) for a, m in there.items()]
        heapify(free_at)
        accepted_at = now
        for ticket in (*self.order, None)[:position]:
            if ticket is not None and ticket.offered:
                member = self.members.get(ticket.offered[0], Member(rung_at=now))
                accepted_at = max(now, member.rung_at + setup)
            else:
                accepted_at = free_at[0] + setup
                heapreplace(free_at, free_at[0] + usual)
        return accepted_at - now

    def _free_at(self, address: str, member: Member, usual: float, now: float) -> float:
        """Return when a member can be rung for another caller. One of several who are rung for the
        same is expected to have it; the others are free soon."""
        ticket = self.tickets.get(member.ticket)
        if member.speaks or (ticket is not None and address == ticket.offered[0]):
            return max(member.rung_at + usual, now + MIN_LEFT * usual)
        return max(now, member.rests_until)

    # --- servers ---

    def renew(
        self, server: str, tickets: Iterable[Ticket], speaking: Mapping[str, str], now: float
    ) -> list[Ticket]:
        """A server still has these callers and, by their tickets, members who speak with others;
        what of it is lost is made anew. What servers had that have died is given up: returns the
        callers who have not come back."""
        for ticket_id, address in speaking.items():
            if (member := self.members.get(address)) is not None and member.ticket != ticket_id:
                member.ticket, member.speaks, member.server = ticket_id, True, server
                member.since = member.rung_at = now
        taken = {member.ticket for member in self.members.values() if member.speaks}
        for ticket in (one for one in tickets if one.id not in taken):
            there = self.tickets.setdefault(ticket.id, ticket)
            there.server, there.renewed = server, now
        for member in self.members.values():
            if member.server == server and (not member.speaks or member.ticket in speaking):
                member.renewed = now
        given_up = []
        for ticket in tuple(self.tickets.values()):
            if now - ticket.renewed > KEPT_S and not ticket.calls_back:
                self.leave(ticket.id, now)
                given_up.append(ticket)
            elif now - ticket.renewed > LEASE_S:
                self._withdraw(ticket, now)
        for member in self.members.values():
            if member.ticket and now - member.renewed > LEASE_S:
                self._release(member, now)
        return given_up

    def see_phones(self, server: str, extensions: Mapping[str, bool], now: float) -> None:
        """A server has phones of these members, or has none. What a server that has died has said
        is forgotten."""
        for address, member in self.members.items():
            if address not in extensions:
                member.phones = None
                continue
            seen = (member.phones or {}).items()
            member.phones = {s: at for s, at in seen if s != server and now - at <= LEASE_S}
            if extensions[address]:
                member.phones[server] = now

    def adopt(self, server: str, now: float) -> list[Ticket]:
        """Return the callers to be called back whose server has died: this one does it now."""
        found = [t for t in self.order if t.calls_back and now - t.renewed > LEASE_S]
        for ticket in found:
            ticket.server, ticket.renewed = server, now
        return found

    # --- members ---

    def assign(self, now: float) -> None:
        """Offer those who wait to members who are free, the first first."""
        for ticket in self.order:
            if ticket.offered or now < ticket.due or now - ticket.renewed > LEASE_S:
                continue
            free = [a for a, member in self.members.items() if member.is_free(now)]
            if not free:
                return
            # In the order of the members those are first whom this caller has not met.
            passed = [a for a in free if a in ticket.passed]
            chosen = [a for a in free if a not in ticket.passed] or passed
            for address in chosen if self._strategy == "all" else [self._choose(chosen)]:
                ticket.offered.append(address)
                self.last = address
                self._occupy(self.members[address], ticket, now, speaks=False)

    def accepted(self, ticket_id: str, address: str, now: float) -> bool:
        """A member speaks with a caller from now on; return False if that one was not offered the
        caller, as one who belongs to another server by now."""
        ticket, member = self.tickets.get(ticket_id), self.members.get(address)
        if ticket is None or member is None or address not in ticket.offered:
            return False
        del self.tickets[ticket_id]
        self.setups = [*self.setups, now - member.rung_at][-MAX_HANDLED:]
        ticket.offered.remove(address)
        self._withdraw(ticket, now)
        self._occupy(member, ticket, now, speaks=True)
        return True

    def passed(self, ticket_id: str, address: str, now: float) -> None:
        """A member has declined a caller, or was not reached."""
        ticket, member = self.tickets.get(ticket_id), self.members.get(address)
        if ticket is not None and address in ticket.offered:
            ticket.offered.remove(address)
            ticket.passed[address] = now
        if member is not None and member.ticket == ticket_id and not member.speaks:
            self._release(member, now)
            member.rests_until = now + REST_S
            self.in_vain += now - member.rung_at + REST_S

    def released(self, address: str, ticket_id: str, now: float) -> None:
        """The call of a member with a caller is over."""
        member = self.members.get(address)
        if member is None or member.ticket != ticket_id or not member.speaks:
            return
        needed = self.in_vain + now - member.rung_at + self._wrap_up_s
        self.handled, self.in_vain = [*self.handled, needed][-MAX_HANDLED:], 0.0
        self._release(member, now)
        member.rests_until = now + self._wrap_up_s

    def pause(self, address: str, paused: bool) -> None:
        """Whether a member is rung from now on. Raises KeyError."""
        member = self.members[address]
        member.paused = paused
        if not paused:
            member.rests_until = 0.0

    def presence(self, address: str, now: float) -> dict[str, Any]:
        """Return what a member sees of the queue; times are those at which something began.
        `calls_back` is who is called back for the member, whose phone rings after that."""
        member = self.members[address]
        first = min((ticket.joined for ticket in self.tickets.values()), default=None)
        ticket = self.tickets.get(member.ticket)
        return {
            "state": member.state(now),
            "since": member.since or None,
            "rests_until": member.rests_until if member.rests_until > now else None,
            "waiting": len(self.tickets),
            "waiting_since": first,
            "calls_back": ticket.caller if ticket is not None and ticket.calls_back else None,
        }

    def _choose(self, addresses: list[str]) -> str:
        if self._strategy == "longest_idle":
            return min(addresses, key=lambda a: self.members[a].since)
        known = list(self.members)
        start = known.index(self.last) + 1 if self.last in known else 0
        return next(a for a in (*known[start:], *known[:start]) if a in addresses)

    def _occupy(self, member: Member, ticket: Ticket, now: float, *, speaks: bool) -> None:
        member.ticket, member.speaks, member.server = ticket.id, speaks, ticket.server
        member.renewed = now
        if speaks:
            member.since = now
        else:
            # Since when it could have been rung counts for how long it takes: servers look after a
            # queue at intervals.
            member.rung_at = max(now - LATE_S, member.rests_until, ticket.joined)

    def _withdraw(self, ticket: Ticket, now: float) -> None:
        """Free the members who are rung for a caller."""
        for address in ticket.offered:
            member = self.members.get(address)
            if member is not None and member.ticket == ticket.id and not member.speaks:
                member.ticket = ""
                self.in_vain += now - member.rung_at
        ticket.offered = []

    def _release(self, member: Member, now: float) -> None:
        if member.speaks:
            member.since = now
        member.ticket, member.speaks = "", False

    # --- as it is kept ---

    def dump(self) -> str:
        """Return the state as JSON."""
        state = {
            "tickets": [asdict(ticket) for ticket in self.tickets.values()],
            "members": {
                address: asdict(member)
                for address, member in (*self._elsewhere.items(), *self.members.items())
            },
            "handled": self.handled,
            "in_vain": self.in_vain,
            "setups": self.setups,
            "last": self.last,
        }
        return json.dumps(state, separators=(",", ":"))

    def load(self, text: str | bytes) -> Self:
        """Take a state that `dump` has returned over, of the members that are there now. Raises
        ValueError for anything else."""
        try:
            state: Mapping[str, Any] = read_json(text)
            tickets = [Ticket(**one) for one in state["tickets"]]
            members = {a: Member(**m) for a, m in state["members"].items()}
            self.handled, self.setups = list(state["handled"]), list(state.get("setups", ()))
            self.in_vain, self.last = state.get("in_vain", 0.0), state["last"]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no state of a queue: {error!r}") from error
        self.tickets = {ticket.id: ticket for ticket in tickets}
        self._elsewhere = {a: m for a, m in members.items() if a not in self.members}
        self.members = {address: members.get(address, Member()) for address in self.members}
        return self
