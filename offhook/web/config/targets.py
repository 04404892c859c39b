"""Where calls can be transferred to: the numbers and addresses that the configuration names."""

import re

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri

_NUMBER = re.compile(r"(tel:)?[0-9+*#][0-9+*#() ./-]*|((queue|ext):)?[A-Za-z0-9+*#_.-]+")
"""A number as people write it, or the name of an extension, a transfer or a queue."""


def checked_target(text: str) -> str:
    """Returns a number or SIP address as it is called. Raises ValueError."""
    target = text.strip()
    if target.lower().startswith(("sip:", "sips:")):
        try:
            Uri.parse(target)
        except SipError as error:
            raise ValueError(f"{text!r} is no SIP address: {error}") from error
    elif not _NUMBER.fullmatch(target):
        raise ValueError(
            f'{text!r} is neither a number, as "+4930123456", nor a SIP address, as '
            '"sip:anna@pbx.example"'
        )
    return target
