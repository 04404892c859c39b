"""An extension: the number of a person whose phones register here, and what they may do."""

from dataclasses import dataclass, field

from offhook.telephony.sip.messages.grammar import SipError

PREFIX = "ext:"
"""What the name of an extension begins with where trunks are named, and a number to be dialled that
is an extension whatever else it may be."""
DIGITS = frozenset("0123456789*#")
MAX_DIGITS = 16
"""Maximum characters of an extension's number; a configuration with a longer one is refused."""


@dataclass(frozen=True)
class Extension:
    """A number of our own. Raises SipError if its values do not fit together."""

    password: str = field(default="", repr=False)
    """Password with which its phones register and call; the username is the number."""
    name: str = ""
    """Whose it is: shown to those who are called from it."""
    ring_seconds: float = 25.0
    """How long its phones ring, in seconds; then the call goes to its voicemail, or has failed."""
    outside: str = ""
    """Name of the trunk over which it may call numbers that are no extensions and have no route; ""
    for none, so that a stolen password costs nothing."""
    voicemail: str = ""
    """Name of an agent of kind "voicemail", which answers when nobody does; "" for none."""
    mail: str = ""
    """Address to which its messages are sent by mail, if `[smtp]` is configured; "" for none."""

    def __post_init__(self) -> None:
        if not self.password:
            raise SipError("an extension needs a password")
        for name in ("password", "name", "mail"):
            if not getattr(self, name).isprintable():
                raise SipError(f"{name} contains unprintable characters")
        if not 0 < self.ring_seconds <= 600:
            raise SipError(f"ring_seconds must be above 0 and at most 600, not {self.ring_seconds}")
        if self.mail and (self.mail.count("@") != 1 or " " in self.mail):
            raise SipError(f"mail must be an address, not {self.mail!r}")


def withdrawn(before: Extension, now: Extension | None) -> bool:
    """Return whether whoever had an extension's password has it no longer."""
    return now is None or now.password != before.password


def check_number(number: str) -> None:
    """Raises SipError for a number that phones cannot dial."""
    if not number or len(number) > MAX_DIGITS or not set(number) <= DIGITS:
        raise SipError(f"extension {number!r}: a number is of up to {MAX_DIGITS} digits, * and #")


def trunk_name(number: str) -> str:
    """Return the name that an extension has among trunks.

    >>> trunk_name("101")
    'ext:101'
    """
    return PREFIX + number
