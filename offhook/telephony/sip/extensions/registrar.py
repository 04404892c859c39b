"""The registrar of our extensions (RFC 3261 §10.3): where the phones of each are now.

Sans-io. A binding is one contact of one extension, with the flow it registered over: a phone behind
a NAT, or one that has connected to us, is reached by that flow only (RFC 5626 §5.3), and so nobody
can have our INVITEs sent to a third party by naming it in a Contact.

    state     event                                            → state
    none      a REGISTER names it                              → bound
    bound     a REGISTER names it again                        → bound, by the flow of that one
    bound     a REGISTER with expires=0, or Contact: *         → gone
    bound     its time is over                                 → gone
    bound     its connection breaks                            → gone: it registers again
    bound     more than MAX_CONTACTS, and it is the oldest     → gone
    bound     the extension is removed, or has another password → gone
    none      it was saved before a restart                    → bound
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.trunks.extension import Extension, withdrawn

DEFAULT_EXPIRES_S = 300
"""Expiry of a registration that asks for none."""
MIN_EXPIRES_S = 30
"""Shortest expiry; a phone that asks for less gets 423 with Min-Expires."""
MAX_EXPIRES_S = 300
"""Longest expiry, however much a phone asks for: after a restart of the server all phones are back
within that time."""
MAX_CONTACTS = 8
"""Contacts of one extension: the oldest gives way to another one. A REGISTER that names more is
refused with 403."""
EXTENSION_TAGS = frozenset({"path", "outbound", "gruu"})
"""Option tags that a REGISTER may require; with others it gets 420."""


class BindingState(Enum):
    NONE = auto()
    BOUND = auto()
    GONE = auto()


class Event(Enum):
    REGISTER = auto()
    REMOVE = auto()
    EXPIRED = auto()
    FLOW_FAILED = auto()
    DISPLACED = auto()
    WITHDRAWN = auto()


TRANSITIONS: Mapping[tuple[BindingState, Event], BindingState] = {
    (BindingState.NONE, Event.REGISTER): BindingState.BOUND,  # RFC 3261 §10.3, step 7
    (BindingState.BOUND, Event.REGISTER): BindingState.BOUND,
    (BindingState.BOUND, Event.REMOVE): BindingState.GONE,  # step 6, or expires=0
    (BindingState.BOUND, Event.EXPIRED): BindingState.GONE,
    (BindingState.BOUND, Event.FLOW_FAILED): BindingState.GONE,  # RFC 5626 §5.3
    (BindingState.BOUND, Event.DISPLACED): BindingState.GONE,
    (BindingState.BOUND, Event.WITHDRAWN): BindingState.GONE,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """One phone of an extension."""

    contact: Uri
    flow: Flow
    path: tuple[str, ...]
    """Proxies on the way to it (RFC 3327), for Route."""
    call_id: str
    cseq: int
    expires_at: float
    """Monotonic seconds."""
    since: float
    """When the phone registered first, in monotonic seconds."""
    user_agent: str = ""
    """What the phone says it is."""

    @property
    def behind_nat(self) -> bool:
        """Whether it says to be at another address than it sends from."""
        source = self.contact.host, self.contact.port or 5060
        return self.flow.transport == "UDP" and source != self.flow.remote


Bindings = tuple[tuple[str, Binding], ...]
"""Of one extension, each with the key by which its contact is known; the oldest first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a REGISTER."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A contact as a REGISTER has it."""

    key: str
    contact: Uri
    expires_s: int


class Registrar:
    """The bindings of all extensions."""

    def __init__(self, extensions: Mapping[str, Extension], changed: Callable[[str], None]) -> None:
        """`changed` is called with an extension whose phones have come or gone."""
        self._extensions = extensions
        self._bindings: dict[str, dict[str, Binding]] = {}
        """By extension, and by contact; the oldest first."""
        self._flows: Counter[Flow] = Counter()
        """Bindings by each flow."""
        self._changed = changed

    # --- what is known ---

    def bindings(self, number: str) -> tuple[Binding, ...]:
        """Return the phones of an extension, the one that registered last first."""
        return tuple(reversed(self._bindings.get(number, {}).values()))

    def by_datagram(self) -> dict[str, Bindings]:
        """Return the phones of each extension that outlive our connections, by contact."""
        found = {
            number: tuple((k, b) for k, b in bindings.items() if not b.flow.reliable)
            for number, bindings in self._bindings.items()
        }
        return {number: phones for number, phones in found.items() if phones}

    def has_flow(self, flow: Flow) -> bool:
        """Return whether a phone has registered over this flow."""
        return flow in self._flows

    def behind_nat(self) -> set[Flow]:
        """Return the flows that a NAT may close, if nothing is sent by them."""
        return {binding.flow for _, binding in self._all() if binding.behind_nat}

    def __len__(self) -> int:
        return sum(map(len, self._bindings.values()))

    def _all(self) -> Iterator[tuple[str, Binding]]:
        for number, bindings in self._bindings.items():
            for binding in bindings.values():
                yield number, binding

    # --- REGISTER ---

    def receive(self, request: Request, number: str, flow: Flow, now: float) -> Answer:
        """Process a REGISTER whose sender has proved to be extension `number`."""
        if request.to.uri.user != number:  # RFC 3261 §10.3, step 4: for another's phones
            return Answer(403)
        if unknown := [tag for tag in request.require if tag not in EXTENSION_TAGS]:
            return Answer(420, (("Unsupported", ", ".join(unknown)),))
        star = (request.headers.get("Contact") or "").strip() == "*"
        if star and request.expires != 0:
            return Answer(400)
        current = self._bindings.get(number, {})
        wanted = () if star else tuple(map(_wanted(request), request.contacts))
        if len(wanted) > MAX_CONTACTS:
            return Answer(403)
        if any(each.contact.scheme not in ("sip", "sips") for each in wanted):
            return Answer(400)
        if any(0 < each.expires_s < MIN_EXPIRES_S for each in wanted):
            return Answer(423, (("Min-Expires", str(MIN_EXPIRES_S)),))
        touched = current if star else {w.key for w in wanted if w.key in current}
        for key in touched:  # step 6: an old request that comes late changes nothing
            if current[key].call_id == request.call_id and current[key].cseq > request.cseq.number:
                return Answer(500)
        if star:
            for key in tuple(current):
                self._step(number, key, Event.REMOVE)
        for each in wanted:
            self._apply(each, request, number, flow, now)
        return Answer(200, (*self._contacts(number, now), *_path_of(request)))

    def _apply(
        self, wanted: _Wanted, request: Request, number: str, flow: Flow, now: float
    ) -> None:
        if not wanted.expires_s:
            self._step(number, wanted.key, Event.REMOVE)
            return
        known = self._bindings.get(number, {}).get(wanted.key)
        binding = Binding(
            wanted.contact,
            flow,
            tuple(request.headers.all("Path")),
            request.call_id,
            request.cseq.number,
            expires_at=now + min(wanted.expires_s, MAX_EXPIRES_S),
            since=now if known is None else known.since,
            user_agent=shown(request.headers.get("User-Agent") or ""),
        )
        self._step(number, wanted.key, Event.REGISTER, binding)
        while len(self._bindings[number]) > MAX_CONTACTS:
            self._step(number, next(iter(self._bindings[number])), Event.DISPLACED)

    def restore(self, number: str, key: str, binding: Binding) -> bool:
        """Add a phone of before a restart; return whether it is new here."""
        known = self._bindings.get(number, {})
        if key in known or len(known) >= MAX_CONTACTS:
            return False
        self._step(number, key, Event.REGISTER, binding)
        return True

    def _step(self, number: str, key: str, event: Event, binding: Binding | None = None) -> None:
        bindings = self._bindings.setdefault(number, {})
        state = BindingState.BOUND if key in bindings else BindingState.NONE
        after = TRANSITIONS.get((state, event))
        if after is not None and (old := bindings.pop(key, None)) is not None:
            self._flows[old.flow] -= 1
            if not self._flows[old.flow]:
                del self._flows[old.flow]
        if after is BindingState.BOUND and binding is not None:
            bindings[key] = binding  # the latest is the last
            self._flows[binding.flow] += 1
        if not bindings:
            del self._bindings[number]
        if after is not None and after is not state:
            self._changed(number)

    def _contacts(self, number: str, now: float) -> Iterator[tuple[str, str]]:
        for binding in self.bindings(number):
            left = max(1, round(binding.expires_at - now))
            yield "Contact", str(NameAddr(binding.contact).with_parameter("expires", str(left)))

    # --- what else ends a binding ---

    def flow_failed(self, flow: Flow) -> None:
        """Drop what was reached by a connection that is gone. An UDP port may come back: its phone
        registers again, or its time ends."""
        if flow.reliable:
            self._drop(Event.FLOW_FAILED, lambda number, binding: binding.flow == flow)

    def use(self, extensions: Mapping[str, Extension]) -> None:
        """Apply other extensions."""
        before, self._extensions = self._extensions, extensions

        self._drop(
            Event.WITHDRAWN,
            lambda number, binding: withdrawn(before[number], extensions.get(number)),
        )

    def get_timer(self) -> float | None:
        return min((binding.expires_at for _, binding in self._all()), default=None)

    def handle_timer(self, now: float) -> None:
        self._drop(Event.EXPIRED, lambda number, binding: binding.expires_at <= now)

    def _drop(self, event: Event, which: Callable[[str, Binding], bool]) -> None:
        found = [
            (number, key)
            for number, bindings in self._bindings.items()
            for key, binding in bindings.items()
            if which(number, binding)
        ]
        for number, key in found:
            self._step(number, key, event)


def _wanted(request: Request) -> Callable[[NameAddr], _Wanted]:
    """Return what reads a Contact of a REGISTER. A phone that names itself (RFC 5626 §4.1) is the
    same one wherever it is; of others the address counts."""
    usual = DEFAULT_EXPIRES_S if request.expires is None else request.expires

    def read(contact: NameAddr) -> _Wanted:
        text = contact.parameter("expires")
        expires_s = usual
        if text is not None and text.isascii() and text.isdigit():
            expires_s = min(int(text), MAX_EXPIRES_S) if len(text) <= 10 else MAX_EXPIRES_S
        uri = contact.uri
        instance = contact.parameter("+sip.instance")
        key = f"{instance} {contact.parameter('reg-id') or ''}"
        if not instance:
            transport = uri.parameter("transport") or ""
            key = f"{uri.user or ''}@{uri.host}:{uri.port or ''};{transport}".lower()
        return _Wanted(key, uri, expires_s)

    return read


def _path_of(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the Path as it came (RFC 3327 §5.3)."""
    return (("Path", value) for value in request.headers.all("Path"))
