"""Why a call ended: as a sentence for people, and as the Reason header (RFC 3326)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offhook.media.end_reason import End, EndReason
from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import unknown_algorithms
from offhook.telephony.sip.messages.message import Message, Response
from offhook.telephony.sip.messages.reasons import CAUSES, REASONS
from offhook.telephony.sip.sessions.session_events import Ended
from offhook.telephony.sip.sessions.session_table import Event, SessionState

MAX_REASON_CHARACTERS = 200
"""Maximum length of the far end's reason text, as shown to people; the rest is cut off."""

MAX_REASONS = 4
"""Maximum Reason values read per message, one of SIP, one of Q.850, and some to spare; further ones
are ignored."""

CANCELLED = EndReason("cancelled")

BY: Mapping[Event, EndedBy] = {
    Event.REFUSE: "local",
    Event.HANG_UP: "local",
    Event.LEAVE: "local",
    Event.SUCCESS_BARE: "local",  # they answered; it is we who cannot continue
    Event.ACK_BARE: "local",
    Event.UNANSWERED: "timeout",
    Event.RING_TIMEOUT: "timeout",
    Event.NO_ACK: "timeout",
    Event.NO_PRACK: "timeout",
    Event.LOST: "timeout",
    Event.FAILED: "timeout",
}
"""Who ended the call, by event; "remote" for all others."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The event that an action follows, and its details."""

    event: Event
    status: int
    reason: str
    sdp: str | None = field(repr=False)
    headers: Sequence[tuple[str, str]]
    by: EndedBy


def ended(cause: Cause, before: SessionState) -> Ended:
    """Return the Ended event. `before` is the state the call was in."""
    status, reason = cause.status, EndReason.of(cause.reason)
    text = EndReason(shown(reason), reason.end)
    if cause.event is Event.REFUSE:
        text = End.REFUSED + f": {status} {text or REASONS.get(status, '')}".rstrip()
    elif cause.event is Event.HANG_UP:
        usual = {
            SessionState.RECEIVED: 480,
            SessionState.CALLING: 487,
            SessionState.PROCEEDING: 487,
        }
        status = status or usual.get(before, 200)
        text = text or (CANCELLED if status == 487 else End.HUNG_UP)
    elif cause.event is Event.CANCEL:
        text = text or CANCELLED
    theirs = cause.sdp if cause.event is Event.FAILURE else None
    return Ended(status, text or End.HUNG_UP, cause.by, theirs)


_WORDS: Mapping[int, str] = {
    401: End.FAR_END + " wants a password",
    404: End.NO_SUCH_NUMBER,
    407: End.FAR_END + " wants a password",
    408: End.NO_ANSWER,
    410: "the number is no longer in use",
    480: End.NOT_AVAILABLE,
    484: End.NUMBER_INCOMPLETE,
    486: End.BUSY,
    487: CANCELLED,
    488: End.NO_COMMON_MEDIA,
    600: End.BUSY,
    603: End.DECLINED,
    604: End.NO_SUCH_NUMBER,
    606: End.NO_COMMON_MEDIA,
    607: "the call is unwanted",
    608: "the call was rejected",
}
_CLASS_WORDS: Mapping[int, EndReason] = {
    3: End.MOVED,
    4: End.REFUSED,
    5: End.FAR_END + " failed",
    6: End.DECLINED,
}
_PLAIN = {408, 486, 487, 600}
"""Statuses omitted from the text, because the words say it all."""


def words(response: Response) -> EndReason:
    """Return a rejection in words: "busy", "declined: 603 Decline"."""
    status, reason = response.status, shown(response.reason)
    text = EndReason.of(_WORDS.get(status) or _CLASS_WORDS.get(status // 100, End.REFUSED))
    if status in (401, 407) and (unknown := unknown_algorithms(response)):
        text = EndReason.of(End.FAR_END + f" wants a digest not known here ({shown(unknown)})")
    if status not in _PLAIN:
        text += f": {status} {reason}".rstrip()
    said = reason_text(response)
    if said and said not in (reason, text):
        text += f" ({said})"
    if 300 <= status < 400 and response.contacts:
        text += f", now at {shown(str(response.contacts[0].uri))}"
    seconds = retry_after(response)
    if seconds is not None:
        text += f", try again in {seconds} s"
    return text


def retry_after(message: Message) -> int | None:
    """Return the seconds of Retry-After, without comment and parameters (RFC 3261 §20.33)."""
    text = (message.headers.get("Retry-After") or "").split("(")[0].split(";")[0].strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def reason_text(message: Message) -> str:
    """Return the text of the first Reason that has one (RFC 3326); "" without. A Q.850 cause is
    worded as in CAUSES, followed by the far end's text if that says more than the standard's
    name."""
    values = message.headers.all("Reason", MAX_REASONS)
    return next((text for text in map(_reason_text, values) if text), "")


def _reason_text(value: str) -> str:
    protocol, _, rest = value[: 2 * MAX_REASON_CHARACTERS].partition(";")
    protocol, cause, text = protocol.strip().upper(), "", ""
    while rest:
        name, equals, after = rest.partition("=")
        name, after = name.strip().lower(), after.strip()
        if equals and after.startswith('"'):
            content, rest = _unquoted(after)
        else:
            content, _, rest = after.partition(";")
        if name == "text":
            text = text or content.strip()
        elif name == "cause":
            cause = cause or content.split(",")[0].strip()
    number = int(cause) if cause.isascii() and cause.isdigit() and len(cause) <= 3 else 0
    if protocol == "Q.850" and number in CAUSES:
        usual, words = CAUSES[number]
        if not text or _letters(text) == _letters(usual):
            return words
        return EndReason(shown(text if words is End.HUNG_UP else f"{words}: {text}"), words.end)
    if text:
        return shown(text)
    if protocol == "SIP" and number in REASONS:
        return f"{number} {REASONS[number]}"
    if protocol == "Q.850" and cause == "0":  # of a PBX that knows none
        return ""
    return shown(f"{protocol} cause {cause}") if cause else ""


def _letters(text: str) -> str:
    """Normalize a cause's spelling: "Normal Clearing", "NORMAL_CALL_CLEARING"."""
    return "".join(c for c in text.lower() if c.isalpha()).replace("call", "")


def _unquoted(text: str) -> tuple[str, str]:
    """Return the content of the quoted string at the start, and the text after the next
    semicolon."""
    content: list[str] = []
    characters = iter(range(1, len(text)))
    for i in characters:
        if text[i] == "\\":
            content.append(text[i + 1 : i + 2])
            next(characters, None)
        elif text[i] == '"':
            return "".join(content), text[i + 1 :].partition(";")[2]
        else:
            content.append(text[i])
    return "".join(content), ""


def reason_header(cause: int, text: str) -> tuple[str, str]:
    """Return a Reason header: a SIP status, or Q.850 cause 16, "normal call clearing" (RFC 3326
    §2)."""
    protocol = "Q.850" if cause < 100 else "SIP"
    quoted = shown(text).replace("\\", "\\\\").replace('"', '\\"')
    return "Reason", f'{protocol};cause={cause};text="{quoted}"'


def shown(text: str) -> str:
    """Make untrusted text fit for display: printable, on one line, of limited length."""
    return printable(text[: 2 * MAX_REASON_CHARACTERS]).strip()[:MAX_REASON_CHARACTERS]


def printable(text: str) -> str:
    """Replace unprintable characters by spaces: no line breaks for a log, nothing outside UTF-8."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
