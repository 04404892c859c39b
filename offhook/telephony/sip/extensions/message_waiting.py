"""Message waiting indication (RFC 3842): tells the phones of an extension how many messages wait.

Sans-io. A phone that has subscribed is told within its subscription (RFC 6665); one that has only
registered gets a NOTIFY by itself, as most phones expect it.

    state     event                                     → state
    none      SUBSCRIBE                                 → active, told at once
    active    SUBSCRIBE within it                       → active for as long as it says, told
    active    SUBSCRIBE with Expires: 0                 → none, told for the last time
    active    its time is over, its connection breaks,
              or a NOTIFY of it is refused (481)        → none
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from offhook.telephony.sip.extensions.registrar import (
    MAX_CONTACTS,
    MAX_EXPIRES_S,
    MIN_EXPIRES_S,
    Answer,
    Binding,
)
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import CSeq, Headers, NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri

EVENT = "message-summary"
SUMMARY = "application/simple-message-summary"

Counts = tuple[int, int]
"""New messages, and those that were heard."""
NONE: Counts = (0, 0)


@dataclass(slots=True)
class _Subscription:
    number: str
    us: NameAddr
    """With our tag."""
    phone: NameAddr
    """With its tag."""
    target: Uri
    routes: tuple[str, ...]
    flow: Flow
    expires_at: float
    cseq: int = 0


class MessageWaiting:
    """The subscriptions of all extensions, and what their mailboxes have."""

    def __init__(
        self,
        phones: Callable[[str], Iterable[Binding]],
        send: Callable[[Request, Flow, float], object],
        contact: Callable[[Flow], Uri],
    ) -> None:
        """`phones` returns the registered phones of an extension; `send` starts a transaction;
        `contact` returns our Contact towards the far end of a flow."""
        self._phones = phones
        self._send = send
        self._contact = contact
        self._counts: Mapping[str, Counts] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        """By Call-ID."""

    def __len__(self) -> int:
        return len(self._subscriptions)

    def counts(self, number: str) -> Counts:
        """Return how many messages an extension has, new and heard ones."""
        return self._counts.get(number, NONE)

    def receive(self, request: Request, number: str, flow: Flow, now: float) -> tuple[Answer, str]:
        """Process a SUBSCRIBE whose sender has proved to be extension `number`. Returns the answer
        and the tag of its To; `confirm` must be called once that is sent."""
        if (request.headers.get("Event") or "").partition(";")[0].strip().lower() != EVENT:
            return Answer(489, (("Allow-Events", EVENT),)), ""
        if request.to.uri.user != number:
            return Answer(403), ""
        known = self._subscriptions.get(request.call_id)
        if request.to.tag and (known is None or known.us.tag != request.to.tag):
            return Answer(481), ""
        wanted_s = MAX_EXPIRES_S if request.expires is None else request.expires
        expires_s = min(wanted_s, MAX_EXPIRES_S)
        if 0 < expires_s < MIN_EXPIRES_S:
            return Answer(423, (("Min-Expires", str(MIN_EXPIRES_S)),)), ""
        tag = known.us.tag if known is not None else secrets.token_hex(8)
        contact = next((each.uri for each in request.contacts), request.from_.uri)
        self._subscriptions[request.call_id] = _Subscription(
            number,
            NameAddr(request.to.uri).with_parameter("tag", tag),
            request.from_,
            contact,
            tuple(str(route) for route in request.record_routes),
            flow,
            now + expires_s,
            known.cseq if known is not None else 0,
        )
        self._drop_oldest(number)
        headers = (("Expires", str(expires_s)), ("Contact", f"<{self._contact(flow)}>"))
        return Answer(200, headers), tag

    def confirm(self, call_id: str, now: float) -> None:
        """The answer to a SUBSCRIBE is sent: tell the phone what waits."""
        subscription = self._subscriptions.get(call_id)
        if subscription is not None:
            self._notify(call_id, subscription, now)
            if subscription.expires_at <= now:
                del self._subscriptions[call_id]

    def _drop_oldest(self, number: str) -> None:
        of_number = [key for key, s in self._subscriptions.items() if s.number == number]
        for key in of_number[:-MAX_CONTACTS]:
            del self._subscriptions[key]

    # --- telling ---

    def use(self, counts: Mapping[str, Counts], now: float) -> None:
        """Tell the phones whose mailboxes have changed."""
        before, self._counts = self._counts, counts
        for number in sorted(before.keys() | counts.keys()):
            if before.get(number, NONE) != counts.get(number, NONE):
                self._update_phones(number, now)

    def registered(self, number: str, binding: Binding, now: float) -> None:
        """A phone has come: tell it of what waits, unless it will subscribe by itself."""
        if self.counts(number) != NONE and not self._is_subscribed(number, binding.flow):
            self._notify_phone(number, binding, now)

    def _update_phones(self, number: str, now: float) -> None:
        for call_id, subscription in tuple(self._subscriptions.items()):
            if subscription.number == number:
                self._notify(call_id, subscription, now)
        for binding in self._phones(number):
            if not self._is_subscribed(number, binding.flow):
                self._notify_phone(number, binding, now)

    def _is_subscribed(self, number: str, flow: Flow) -> bool:
        return any(s.number == number and s.flow == flow for s in self._subscriptions.values())

    def _notify(self, call_id: str, subscription: _Subscription, now: float) -> None:
        subscription.cseq += 1
        left = max(0, round(subscription.expires_at - now))
        state = f"active;expires={left}" if left else "terminated;reason=timeout"
        us, phone = subscription.us, subscription.phone
        request = self._request(
            subscription.number, subscription.target, us, phone, call_id, subscription.flow
        )
        request.headers.set("CSeq", str(CSeq(subscription.cseq, "NOTIFY")))
        request.headers.add("Subscription-State", state)
        for route in subscription.routes:
            request.headers.add("Route", route)
        self._send(request, subscription.flow, now)

    def _notify_phone(self, number: str, binding: Binding, now: float) -> None:
        account = Uri("sip", user=number, host=self._contact(binding.flow).host)
        us = NameAddr(account).with_parameter("tag", secrets.token_hex(8))
        call_id = secrets.token_hex(16)
        request = self._request(
            number, binding.contact, us, NameAddr(account), call_id, binding.flow
        )
        request.headers.add("Subscription-State", "active")
        for route in binding.path:
            request.headers.add("Route", route)
        self._send(request, binding.flow, now)

    def _request(
        self, number: str, target: Uri, us: NameAddr, phone: NameAddr, call_id: str, flow: Flow
    ) -> Request:
        new, heard = self.counts(number)
        contact = self._contact(flow)
        waiting = "yes" if new else "no"
        body = (
            f"Messages-Waiting: {waiting}\r\n"
            f"Message-Account: {Uri('sip', user=number, host=contact.host)}\r\n"
            f"Voice-Message: {new}/{heard}\r\n"
        )
        headers = Headers(
            [
                ("From", str(us)),
                ("To", str(phone)),
                ("Call-ID", call_id),
                ("CSeq", str(CSeq(1, "NOTIFY"))),
                ("Contact", f"<{contact}>"),
                ("Max-Forwards", "70"),
                ("Event", EVENT),
                ("Content-Type", SUMMARY),
            ]
        )
        return Request("NOTIFY", target, headers, body.encode())

    # --- the end ---

    def refused(self, call_id: str) -> None:
        """A phone does not know its subscription, or does not answer."""
        self._subscriptions.pop(call_id, None)

    def flow_failed(self, flow: Flow) -> None:
        """The connection of phones is gone."""
        if flow.reliable:
            self._keep(lambda subscription: subscription.flow != flow)

    def get_timer(self) -> float | None:
        return min((s.expires_at for s in self._subscriptions.values()), default=None)

    def handle_timer(self, now: float) -> None:
        self._keep(lambda subscription: subscription.expires_at > now)

    def _keep(self, which: Callable[[_Subscription], bool]) -> None:
        self._subscriptions = {key: s for key, s in self._subscriptions.items() if which(s)}
