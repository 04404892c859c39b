"""An established call as another server continues it: its dialog (RFC 3261 §12) and its media.

The other server sends a re-INVITE in the same dialog, with its own Contact, address and port
(§12.2.1.1, §14.1). Keys are not part of it: the re-INVITE has new ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offhook.telephony.sip.media.offer_answer import SavedMedia
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import MAX_ROUTES, Dialog

CSEQ_GAP = 100
"""CSeq numbers left out by the server that continues a dialog: the other one may have sent as many
requests since the dialog was saved, and only higher numbers are accepted (RFC 3261 §12.2.2)."""
MAX_CSEQ = 2**31 - 1
"""Largest CSeq (RFC 3261 §8.1.1.5); a saved dialog that comes within CSEQ_GAP of it is refused, and
its call is not continued."""
MAX_VALUE_CHARACTERS = 2000
"""Maximum length of each value of a saved dialog, as long as a header may be; a dialog with a
longer one is refused, and its call is not continued."""

SavedTransport = Literal["UDP", "TCP"]
SAVED_TRANSPORTS: Mapping[str, SavedTransport] = {"UDP": "UDP", "TCP": "TCP"}
"""Transports of calls that can continue elsewhere: a TLS or WebSocket connection ends with its
server, and a browser cannot be connected to."""


@dataclass(frozen=True)
class SavedDialog:
    """A dialog in header syntax, from our end."""

    call_id: str
    local: str
    """From of our requests, with our tag."""
    remote: str
    remote_target: str
    route_set: tuple[str, ...]
    """The proxies in between, nearest first."""
    local_cseq: int
    remote_cseq: int | None
    we_called: bool
    transport: SavedTransport
    media: SavedMedia

    @classmethod
    def of(
        cls, dialog: Dialog, we_called: bool, transport: SavedTransport, media: SavedMedia
    ) -> "SavedDialog":
        return cls(
            dialog.call_id,
            str(dialog.local),
            str(dialog.remote),
            str(dialog.remote_target),
            tuple(str(route) for route in dialog.route_set),
            dialog.local_cseq,
            dialog.remote_cseq,
            we_called,
            transport,
            media,
        )

    def dialog(self, local_contact: Uri) -> Dialog:
        """Return the dialog as this server continues it. Raises SipError."""
        self._check()
        return Dialog(
            call_id=self.call_id,
            local=_tagged(self.local),
            remote=NameAddr.parse(self.remote),
            local_contact=local_contact,
            remote_target=_sip_uri(self.remote_target),
            route_set=tuple(NameAddr.parse(route) for route in self.route_set),
            local_cseq=self.local_cseq + CSEQ_GAP,
            remote_cseq=self.remote_cseq,
        )

    def next_hop(self) -> Uri:
        """Return where its requests go (RFC 3261 §8.1.2). Raises SipError."""
        self._check()
        if self.route_set:
            return _sip_uri(str(NameAddr.parse(self.route_set[0]).uri))
        return _sip_uri(self.remote_target)

    def _check(self) -> None:
        """Refuse what could not have been saved from a dialog. Raises SipError."""
        texts = (self.call_id, self.local, self.remote, self.remote_target, *self.route_set)
        if not self.call_id or " " in self.call_id:
            raise SipError("a saved dialog has no Call-ID")
        if any(not text.isprintable() or len(text) > MAX_VALUE_CHARACTERS for text in texts):
            raise SipError("a saved dialog has an unprintable or overlong value")
        if len(self.route_set) > MAX_ROUTES:
            raise SipError(f"a saved dialog has more than {MAX_ROUTES} routes")
        numbers = (self.local_cseq, self.remote_cseq or 0)
        if any(not 0 <= number <= MAX_CSEQ - CSEQ_GAP for number in numbers):
            raise SipError("a saved dialog has an invalid CSeq")


def _tagged(text: str) -> NameAddr:
    party = NameAddr.parse(text)
    if not party.tag:
        raise SipError("a saved dialog has no tag of ours")
    return party


def _sip_uri(text: str) -> Uri:
    uri = Uri.parse(text)
    if uri.scheme not in ("sip", "sips") or not uri.host:
        raise SipError(f"{text[:48]!r} is not the address of a next hop")
    return uri
