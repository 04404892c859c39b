"""Who has forwarded an incoming call to us: Diversion (RFC 5806) and History-Info (RFC 7044)."""

from contextlib import suppress

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri


def diverted_from(request: Request) -> Uri | None:
    """Return whose calls were forwarded to us, of several the last; None if nobody's were, or it is
    withheld. Diversion counts before History-Info: it is about nothing else."""
    for value in request.headers.all("Diversion", 1):
        with suppress(SipError):
            last = NameAddr.parse(value)
            withheld = (last.parameter("privacy") or "").lower() in ("full", "uri")
            return None if withheld else last.uri
    last_but_one = _retargeted(request)
    return None if last_but_one is None or _is_private(last_but_one.uri) else last_but_one.uri


def _retargeted(request: Request) -> NameAddr | None:
    """Return the last entry of the History-Info whose target was replaced by another user's.

    The entry after it says so by `mp` (RFC 7044 §10), which names it; where only RFC 4244 is
    known, by a cause of the diversion in its URI (RFC 4458), or the entry has a Reason itself.
    """
    entries: list[NameAddr] = []
    for value in request.headers.all("History-Info"):
        with suppress(SipError):
            entries.append(NameAddr.parse(value))
    by_index = {entry.parameter("index"): entry for entry in entries}
    for before, entry in zip(entries[-2::-1], entries[:0:-1], strict=True):
        mapped_from = entry.parameter("mp")
        if mapped_from is not None:
            return by_index.get(mapped_from)
        if {"rc", "np"}.intersection(name for name, _ in entry.parameters):
            continue  # the same user, at another address
        if entry.uri.parameter("cause") is not None or _embedded(before.uri, "reason"):
            return before
    return None


def _is_private(uri: Uri) -> bool:
    """Whether the user wants the entry withheld (RFC 7044 §10.1.1)."""
    return "history" in _embedded(uri, "privacy").lower()


def _embedded(uri: Uri, name: str) -> str:
    """Return the value of a header field in a URI; "" if it is absent."""
    return next((value for key, value in uri.headers if key.lower() == name), "")
