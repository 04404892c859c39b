"""The REGISTERs of one trunk (RFC 3261 §10.2): contact, expiry, sequence number, credentials."""

import secrets

from offhook.telephony.sip.auth.digest import DigestClient, unknown_algorithms
from offhook.telephony.sip.messages.grammar import SipError, parse_number
from offhook.telephony.sip.messages.headers import CSeq, Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.trunks import Trunk

MAX_EXPIRES_S = 86_400
"""Longest expiry: a registrar that grants more is refreshed after a day, and one that requires more
(423) is not used."""
MAX_EXPIRY_RAISES = 3
"""Times in one round that a registrar may require a longer expiry (423); with more the registration
is denied."""
_MAX_S = 2**32 - 1
"""Largest number of seconds in a header (RFC 3261 §20.19)."""


class Denied(ValueError):
    """The registrar wants what we cannot give; the message says what."""


class RegisterRequests:
    """Makes the REGISTERs, and reads what responses grant or require."""

    def __init__(self, trunk: Trunk, contact: Uri, user_agent: str) -> None:
        self.call_id = secrets.token_hex(16)
        """Of every REGISTER (RFC 3261 §10.2.4)."""
        self.contact = contact
        self._trunk = trunk
        self._requested_contact = contact  # in the last REGISTER
        self._old_contact: Uri | None = None  # to be removed by the next REGISTER
        self._user_agent = user_agent
        self._digest = DigestClient(trunk.username, trunk.password, trunk.realm)
        self._tag = secrets.token_hex(8)
        self._cseq = 0
        self._expires = trunk.expires_seconds  # the expiry we request
        self._expiry_raises = 0  # how often it was raised in this round

    def start_round(self) -> None:
        """The registrar may require a longer expiry again."""
        self._expiry_raises = 0

    def move(self, contact: Uri, bound: bool) -> None:
        """Replace the contact: the next REGISTER replaces the binding, if there is one."""
        if bound:
            self._old_contact = self._old_contact or self.contact
        self.contact = contact
        if self._old_contact == contact:  # changed back
            self._old_contact = None

    def bind(self) -> bool:
        """The contact of the last REGISTER is bound. Returns whether that is still ours: it may
        have changed while the request was pending."""
        current = self._requested_contact == self.contact
        self._old_contact = None if current else self._requested_contact
        return current

    def make(self, expires: int | None = None) -> Request:
        """Return a REGISTER without Via; `expires` is 0 to remove the binding."""
        self._cseq += 1
        self._requested_contact = self.contact
        aor = self._trunk.address_of_record
        headers = Headers(
            [
                ("From", str(NameAddr(aor, parameters=(("tag", self._tag),)))),
                ("To", str(NameAddr(aor))),
                ("Call-ID", self.call_id),
                ("CSeq", str(CSeq(self._cseq, "REGISTER"))),
                ("Contact", str(NameAddr(self.contact))),
                ("Expires", str(self._expires if expires is None else expires)),
                ("Max-Forwards", "70"),
            ]
        )
        if self._old_contact is not None:
            headers.add("Contact", str(NameAddr(self._old_contact, parameters=(("expires", "0"),))))
        if self._user_agent:
            headers.add("User-Agent", self._user_agent)
        request = Request("REGISTER", self._trunk.registrar, headers)
        self._digest.preempt(request)
        return request

    def repeated(self, request: Request) -> None:
        """A request of `authorize` is sent."""
        self._cseq = request.cseq.number

    def authorize(self, response: Response, request: Request) -> Request:
        """Answer a challenge (RFC 3261 §22.2). Raises Denied."""
        if not self._trunk.password:
            raise Denied("the registrar requires a password, and the trunk has none")
        again = self._digest.authorize(response, request)
        if again is None and (unknown := unknown_algorithms(response)):
            raise Denied(f"it wants a digest not known here ({unknown[:80]})")
        if again is None:
            raise Denied("wrong username or password, or the realm is not the trunk's")
        return again

    def raise_expiry(self, response: Response) -> Request:
        """Handle 423 (RFC 3261 §10.2.8). Raises Denied."""
        least = number(response.headers.get("Min-Expires"), _MAX_S) or 0
        self._expiry_raises += 1
        if not self._expires < least <= MAX_EXPIRES_S or self._expiry_raises > MAX_EXPIRY_RAISES:
            raise Denied(f"{self._expires} s is too short, it requires {least} s")
        self._expires = least
        return self.make()

    def granted(self, response: Response) -> int:
        """Return the seconds granted to our binding by a 2xx, which lists all bindings of the
        address of record.

        Ours is found by its URI. If none matches, a middlebox has rewritten it: then the shortest
        expiry listed counts.
        """
        default = self._expires if response.expires is None else response.expires
        contacts = response.contacts
        ours = [c for c in contacts if _same_place(c.uri, self._requested_contact)] or contacts
        lives = [number(c.parameter("expires"), _MAX_S) for c in ours]
        least = min((default if life is None else life for life in lives), default=default)
        return min(least, MAX_EXPIRES_S)


def _same_place(uri: Uri, ours: Uri) -> bool:
    """Compare user, host and port: registrars add parameters, and omit transport."""
    return (uri.user, uri.host, uri.port or 5060) == (ours.user, ours.host, ours.port or 5060)


def number(text: str | None, limit: int) -> int | None:
    """Return the number at the start of a header or parameter, as in "120 (maintenance)" or
    "60;duration=5", at most `limit`; None if there is none."""
    digits = (text or "").strip().partition(";")[0].partition("(")[0].strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return parse_number(digits, limit)
    except SipError:
        return limit
