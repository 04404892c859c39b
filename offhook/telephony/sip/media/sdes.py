"""SRTP keys in SDP: a=crypto (RFC 4568, with the suites of RFC 6188 and RFC 7714)."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

SUITES = {
    "AES_CM_128_HMAC_SHA1_80": 16 + 14,
    "AEAD_AES_256_GCM": 32 + 12,
    "AES_CM_128_HMAC_SHA1_32": 16 + 14,
    "AEAD_AES_128_GCM": 16 + 12,
    "AES_256_CM_HMAC_SHA1_80": 32 + 14,
    "AES_256_CM_HMAC_SHA1_32": 32 + 14,
    "AES_CM_256_HMAC_SHA1_80": 32 + 14,
    "AES_CM_256_HMAC_SHA1_32": 32 + 14,
}
"""Suite → bytes of master key and salt together (RFC 4568 §6.2, RFC 7714 §13.1, RFC 6188 §3). The
last two are names of drafts of RFC 6188, which some phones still use."""

OFFERED_SUITES = ("AES_CM_128_HMAC_SHA1_80", "AEAD_AES_256_GCM", "AES_CM_128_HMAC_SHA1_32")
"""The most widely supported suite first, one for those restricted to GCM, one for phones with no
other. A line costs 90 bytes, and an INVITE over 1300 bytes may not use UDP (RFC 3261 §18.1.1)."""
MAX_MKI_BYTES = 128
"""Maximum length of a master key identifier (RFC 4568 §6.1); a longer one is malformed."""
_MKI = re.compile(r"([0-9]{1,309}):([0-9]{1,3})")
"""309 digits: of 128 bytes."""


@dataclass(frozen=True, slots=True)
class Crypto:
    """One a=crypto line with a single key and no parameters that matter."""

    tag: int
    suite: str
    """Upper case, one of SUITES."""
    key: bytes = field(repr=False)
    """Master key and salt of the line's author, for what that side sends."""
    mki: bytes = field(default=b"", repr=False)
    """Master key identifier, which each packet of that side bears (RFC 3711 §3.1); b"" for none."""

    def __str__(self) -> str:
        key = base64.b64encode(self.key).decode()
        mki = f"|{int.from_bytes(self.mki, 'big')}:{len(self.mki)}" if self.mki else ""
        return f"{self.tag} {self.suite} inline:{key}{mki}"


def parse_crypto(value: str) -> Crypto | None:
    """Parse the value of an a=crypto line. Returns None if it is malformed or unsupported: another
    suite, several keys, a session parameter that matters."""
    tag, suite, key_params, *session = [*value.split(), "", "", ""]
    suite = suite.upper()
    if suite not in SUITES or not (tag.isascii() and tag.isdigit() and len(tag) <= 9):
        return None
    if not all(_is_ignorable(parameter) for parameter in session):
        return None
    method, _, info = key_params.partition(":")
    key_text, *rest = info.split("|")
    # The lifetime concerns the sender, who renews the key by a re-offer.
    if rest and _is_lifetime(rest[0]):
        del rest[0]
    mki = _parse_mki(rest[0]) if len(rest) == 1 else b""
    if method.lower() != "inline" or len(rest) > 1 or mki is None:
        return None
    try:
        # Some leave the padding out.
        key = base64.b64decode(key_text + "=" * (-len(key_text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return Crypto(int(tag), suite, key, mki) if len(key) == SUITES[suite] else None


def first_supported(values: Iterable[str]) -> Crypto | None:
    """Return the first supported line; the offer's order counts (RFC 4568 §5.1.2)."""
    return next((crypto for value in values if (crypto := parse_crypto(value))), None)


def make_offer(make_key: Callable[[int], bytes]) -> tuple[Crypto, ...]:
    """Return the lines of a first offer, each with its own key."""
    return tuple(
        Crypto(tag, suite, make_key(SUITES[suite])) for tag, suite in enumerate(OFFERED_SUITES, 1)
    )


def _is_ignorable(parameter: str) -> bool:
    """Whether a session parameter (RFC 4568 §6.3) can be ignored: a window size is a hint, and "-"
    marks optional ones. KDR, UNENCRYPTED_…, FEC_… would change the packets."""
    return not parameter or parameter.startswith("-") or parameter.upper().startswith("WSH=")


def _is_lifetime(text: str) -> bool:
    number = text.removeprefix("2^")
    return number.isascii() and number.isdigit() and len(number) <= 15


def _parse_mki(text: str) -> bytes | None:
    """Return the bytes of "value:length" (RFC 4568 §6.1); None if it is malformed."""
    match = _MKI.fullmatch(text)
    if match is None:
        return None
    value, length = int(match[1]), int(match[2])
    if not 1 <= length <= MAX_MKI_BYTES or value >= 1 << 8 * length:
        return None
    return value.to_bytes(length, "big")
