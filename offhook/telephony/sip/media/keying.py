"""Media encryption: SDES (RFC 4568), DTLS-SRTP (RFC 5763, RFC 8122), or none.

| our setting | offered plain | AVP with keys (RFC 8643) | SAVP       | UDP/TLS    |
|-------------|---------------|--------------------------|------------|------------|
| off         | plain         | plain                    | refused    | refused    |
| optional    | plain         | protected if keys fit,   | protected  | protected  |
|             |               | else plain               | or refused | or refused |
| required    | refused       | protected or refused     | as above   | as above   |
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal

from offhook.telephony.sip.media.sdes import (
    SUITES,
    Crypto,
    first_supported,
    make_offer,
    parse_crypto,
)
from offhook.telephony.sip.messages.sdp import Attributes, Media

Policy = Literal["off", "optional", "required"]
Profile = Literal["RTP/AVP", "RTP/SAVP", "UDP/TLS/RTP/SAVP"]
PROFILES: dict[Policy, tuple[Profile, ...]] = {
    "off": ("RTP/AVP",),
    "optional": ("RTP/AVP", "RTP/SAVP", "UDP/TLS/RTP/SAVP"),
    "required": ("RTP/SAVP", "UDP/TLS/RTP/SAVP"),
}
"""Profiles we offer, in this order if one is not acceptable: some far ends that require SRTP reject
an offer in which it is optional (RFC 8643). "required" is never relaxed."""
Role = Literal["client", "server"]

_DIGEST_BYTES = {"sha-1": 20, "sha-256": 32, "sha-384": 48, "sha-512": 64}
"""Digest lengths (RFC 8122 §5); MD5 and MD2 are insecure and not accepted."""
_SETUP: dict[Role, str] = {"client": "active", "server": "passive"}


class KeyingError(ValueError):
    """The stream cannot be encrypted as one of the two sides requires."""


@dataclass(frozen=True, slots=True)
class Sdes:
    """Keys exchanged in SDP (RFC 4568). The SRTP state of a direction lives as long as its key: a
    direction whose key is kept through a re-offer continues its packet counters."""

    tag: int
    suite: str
    """One of sdes.SUITES."""
    local_key: bytes = field(repr=False)
    """Master key and salt of what we send."""
    remote_key: bytes = field(repr=False)
    local_mki: bytes = field(default=b"", repr=False)
    """Master key identifier of our packets; b"" for none."""
    remote_mki: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Dtls:
    """Keys to be negotiated by a DTLS handshake on the media path (RFC 5763)."""

    remote_fingerprints: tuple[tuple[str, str], ...]
    """(hash function "sha-256", digest "AB:CD:…"): the far end's certificate must match one."""
    role: Role
    """Our role; the client sends first."""


Security = Sdes | Dtls | None


@dataclass(frozen=True, slots=True)
class Keying:
    """This end's encryption policy and keys."""

    policy: Policy
    fingerprint: str
    """Value of our a=fingerprint line; "" without DTLS."""
    address: str
    make_key: Callable[[int], bytes] = field(repr=False)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Profiles for a first offer, in the order to try."""
        profiles = PROFILES[self.policy]
        return profiles if self.fingerprint else tuple(p for p in profiles if "TLS" not in p)

    def first_offer(self, profile: Profile) -> Attributes:
        """Return the attributes that go with a profile. A plain profile gets SDES, which every
        phone with SRTP supports, so that others can still answer; and only one suite, because over
        UDP each byte counts. RTP/SAVP is also used to mean DTLS, so it offers both."""
        dtls: Attributes = ()
        if self.fingerprint:
            dtls = ("fingerprint", self.fingerprint), ("setup", "actpass")  # RFC 5763 §5
        if profile == "UDP/TLS/RTP/SAVP":
            return dtls
        if self.policy == "off":
            return ()
        lines = _crypto_lines(make_offer(self.make_key))
        return (*lines, *dtls) if profile == "RTP/SAVP" else lines[:1]

    def answer(self, theirs: Media, before: Security) -> tuple[Security, Attributes]:
        """Return the encryption chosen for an offered stream and our answer's attributes. `before`
        is the call's current encryption: unchanged parts keep their keys and roles. Raises
        KeyingError."""
        secure = is_secure(theirs)
        if self.policy == "off":
            if secure:
                raise KeyingError("SRTP is disabled")
            return None, ()
        dtls = self._answer_dtls(theirs, before) if self.fingerprint else None
        if dtls:
            return dtls, self.dtls_lines(dtls.role)
        crypto = first_supported(theirs.attribute_values("crypto"))
        if crypto and not theirs.profile.startswith("UDP/TLS/"):
            sdes = self._answer_sdes(crypto, before)
            return sdes, _crypto_lines(
                [Crypto(sdes.tag, sdes.suite, sdes.local_key, sdes.local_mki)]
            )
        if secure or self.policy == "required":
            raise KeyingError(f"no common SRTP key exchange{_offered_suites(theirs)}")
        return None, ()

    def accept(self, ours: Media, theirs: Media) -> Security:
        """Return the encryption that an answer to our offer selects. Raises KeyingError."""
        # Each suite occurs once in our lines, so it identifies the line; some answer with a tag of
        # their own.
        offered = {crypto.suite: crypto for crypto in _cryptos(ours)}
        # An answer has one line (RFC 4568 §5.1.3); of several, the one without an MKI is the usual.
        for crypto in sorted(_cryptos(theirs), key=lambda crypto: bool(crypto.mki)):
            if local := offered.get(crypto.suite):
                keys = local.key, crypto.key, local.mki, crypto.mki
                return Sdes(local.tag, local.suite, *keys)
        if ours.setup and (fingerprints := _usable(theirs.fingerprints)):
            active = ours.setup == "active" or theirs.setup == "passive"
            return Dtls(fingerprints, "client" if active else "server")
        if is_secure(ours) or is_secure(theirs) or self.policy == "required":
            suites = _offered_suites(theirs)
            raise KeyingError(f"the answer has no SRTP key or fingerprint that fits{suites}")
        return None

    def check_policy(self, encrypted: bool, secure: bool) -> None:
        """Check a call of another server: `encrypted` if it has SDES keys, `secure` if its profile
        requires them. Raises KeyingError."""
        if self.policy == "off" and (encrypted or secure):
            raise KeyingError("SRTP is disabled")
        if not encrypted and (secure or self.policy == "required"):
            raise KeyingError("the call has no SRTP key exchange")

    def dtls_lines(self, role: Role) -> Attributes:
        return ("fingerprint", self.fingerprint), ("setup", _SETUP[role])

    def _answer_sdes(self, crypto: Crypto, before: Security) -> Sdes:
        if isinstance(before, Sdes):
            present = before.tag, before.suite, before.remote_key, before.remote_mki
            if present == (crypto.tag, crypto.suite, crypto.key, crypto.mki):
                return before
        # A new key of ours with each of theirs: both directions restart together, and no packet
        # counter is reused with one key (RFC 4568 §7.1.4). Who sends an MKI expects one.
        key = self.make_key(SUITES[crypto.suite])
        return Sdes(crypto.tag, crypto.suite, key, crypto.key, crypto.mki, crypto.mki)

    def _answer_dtls(self, theirs: Media, before: Security) -> Dtls | None:
        fingerprints = _usable(theirs.fingerprints)
        role: Role
        match theirs.setup:
            case "actpass" if (
                isinstance(before, Dtls) and before.remote_fingerprints == fingerprints
            ):
                role = before.role  # the association continues (RFC 8842 §5.3)
            case "actpass":
                # Being active saves a round trip (RFC 5763 §5), but the far end is often not where
                # its SDP says, and knows our address: unless we are the one behind a NAT.
                role = "client" if self._is_behind_nat(theirs) else "server"
            case "passive":
                role = "client"
            case "active" | None:  # the default in an offer is active (RFC 4145 §4.1)
                role = "server"
            case _:
                return None
        return Dtls(fingerprints, role) if fingerprints else None

    def _is_behind_nat(self, theirs: Media) -> bool:
        """Whether our own address is unreachable from the far end."""
        try:
            remote, local = ip_address(theirs.connection or ""), ip_address(self.address)
        except ValueError:
            return False
        return remote.is_global and not local.is_global


def is_secure(media: Media) -> bool:
    """Whether the profile requires SRTP: RTP/SAVP, RTP/SAVPF, UDP/TLS/RTP/SAVP…"""
    return "SAVP" in media.profile


def new_crypto_line(tag: int, suite: str, make_key: Callable[[int], bytes]) -> Attributes:
    """Return an a=crypto line with a new key. Raises KeyingError for an unknown suite."""
    if suite not in SUITES:
        raise KeyingError(f"SRTP suite {suite[:40]!r} is not supported")
    return _crypto_lines([Crypto(tag, suite, make_key(SUITES[suite]))])


def crypto_lines_of(media: Media) -> Attributes:
    return tuple(pair for pair in media.attributes if pair[0] == "crypto")


def _offered_suites(media: Media) -> str:
    """The far end's SDES suites, in brackets; "" without any."""
    suites = [value.split()[1:2] for value in media.attribute_values("crypto")]
    names = ", ".join(suite[0][:40] for suite in suites[:4] if suite)
    return f" (the far end has {names})" if names else ""


def _cryptos(media: Media) -> list[Crypto]:
    found = (parse_crypto(value) for value in media.attribute_values("crypto"))
    return [crypto for crypto in found if crypto]


def _crypto_lines(cryptos: list[Crypto] | tuple[Crypto, ...]) -> Attributes:
    return tuple(("crypto", str(crypto)) for crypto in cryptos)


def _usable(fingerprints: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in fingerprints if _is_digest(*pair))


def _is_digest(function: str, digest: str) -> bool:
    pairs = digest.split(":")
    return len(pairs) == _DIGEST_BYTES.get(function) and all(
        len(pair) == 2 and set(pair) <= set("0123456789ABCDEF") for pair in pairs
    )
