"""SRTP with keys from SDP (RFC 3711, RFC 4568, RFC 6188, RFC 7714), through libsrtp.

A master key identifier (MKI) is inserted and removed here. It stands before the authentication tag,
which does not cover it (RFC 3711 §3.1); with AEAD, where the tag is part of the ciphertext, at the
end (RFC 7714 §8.2, §9.2).
"""

from pylibsrtp import Error, Policy, Session

from offhook.media.rtp.srtp import Protector, compiled, use_aes_256
from offhook.telephony.sip.media.sdes import SUITES

MAX_SSRCS = 64
"""SSRCs a far end may use under one key; packets of further ones are dropped and counted. libsrtp
keeps state for each and searches it linearly; a call has one, and another after a transfer."""

_PROFILES = {
    "AES_CM_128_HMAC_SHA1_80": Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_CM_128_HMAC_SHA1_32": Policy.SRTP_PROFILE_AES128_CM_SHA1_32,
    "AEAD_AES_128_GCM": Policy.SRTP_PROFILE_AEAD_AES_128_GCM,
    "AEAD_AES_256_GCM": Policy.SRTP_PROFILE_AEAD_AES_256_GCM,
    # Made AES-256 afterwards:
    "AES_256_CM_HMAC_SHA1_80": Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_256_CM_HMAC_SHA1_32": Policy.SRTP_PROFILE_AES128_CM_SHA1_32,
    "AES_CM_256_HMAC_SHA1_80": Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_CM_256_HMAC_SHA1_32": Policy.SRTP_PROFILE_AES128_CM_SHA1_32,
}
_RTCP_TAG_BYTES = 10
"""Of SRTCP with HMAC-SHA1, whatever SRTP has (RFC 4568 §6.2.2)."""


class SrtpError(ValueError):
    """A packet is not authentic, is replayed or too long, or a key does not fit its suite."""


def _session(suite: str, key: bytes, direction: int) -> Session:
    if suite not in _PROFILES:
        raise SrtpError(f"SRTP suite {suite} is not supported")
    if len(key) != SUITES[suite]:
        raise SrtpError(f"{suite} takes a key and salt of {SUITES[suite]} bytes, not {len(key)}")
    policy = Policy(key=key, ssrc_type=direction, srtp_profile=_PROFILES[suite])
    try:
        if "256_CM" in suite or "CM_256" in suite:
            use_aes_256(policy)
        return Session(policy)
    except Error as error:
        raise SrtpError(f"{suite}: {error}") from error


def _tag_bytes(suite: str) -> int:
    """Bytes of the authentication tag that follows the ciphertext of RTP."""
    return 0 if suite.startswith("AEAD") else 4 if suite.endswith("_32") else 10


class SdesSrtp:
    """SRTP in both directions of one call: our key for sending, the other for receiving."""

    def __init__(
        self,
        suite: str,
        local_key: bytes,
        remote_key: bytes,
        local_mki: bytes = b"",
        remote_mki: bytes = b"",
    ) -> None:
        """The keys are master key and salt, as in `a=crypto`; packets bear the MKIs, b"" for none.
        Raises SrtpError."""
        self.suite = suite
        self._local_key, self._remote_key = local_key, remote_key
        self._local_mki, self._remote_mki = local_mki, remote_mki
        self._tag = _tag_bytes(suite)
        self._rtcp_tag = _RTCP_TAG_BYTES if self._tag else 0
        self._out = Protector(_session(suite, local_key, Policy.SSRC_ANY_OUTBOUND))
        self._in = _session(suite, remote_key, Policy.SSRC_ANY_INBOUND)
        self.compiled = None if remote_mki else compiled(self._in)
        """Undoes on the compiled path what `unprotect` does, for the SSRCs in `_sources`."""
        self._sources: set[bytes] = set()

    def renewed(
        self,
        suite: str,
        local_key: bytes,
        remote_key: bytes,
        local_mki: bytes = b"",
        remote_mki: bytes = b"",
    ) -> "SdesSrtp":
        """Return the same call's SRTP under keys of which one or both are new. A direction that
        keeps its key continues: restarted, it would reuse a keystream and accept replays (RFC 3711
        §9.1, §3.3.2). Raises SrtpError."""
        renewed = SdesSrtp(suite, local_key, remote_key, local_mki, remote_mki)
        if suite == self.suite and local_key == self._local_key:
            renewed._out = self._out
        if suite == self.suite and remote_key == self._remote_key:
            renewed._in, renewed._sources = self._in, self._sources
            renewed.compiled = None if remote_mki else compiled(self._in)
        return renewed

    def protect(self, packet: bytes) -> bytes:
        """Encrypt an RTP packet. Raises SrtpError."""
        try:
            protected = self._out.protect(packet)
        except (Error, ValueError) as error:  # ValueError: over libsrtp's 1500 bytes
            raise SrtpError(str(error)) from error
        return _with_mki(protected, self._local_mki, self._tag)

    def protect_rtcp(self, packet: bytes) -> bytes:
        """Encrypt an RTCP datagram. Raises SrtpError."""
        try:
            protected = self._out.protect_rtcp(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error
        return _with_mki(protected, self._local_mki, self._rtcp_tag)

    def unprotect(self, packet: bytes) -> bytes:
        """Authenticate and decrypt an RTP packet. Raises SrtpError."""
        self._check_source(ssrc := packet[8:12])
        packet = _without_mki(packet, self._remote_mki, self._tag)
        try:
            plain = self._in.unprotect(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error
        self._sources.add(ssrc)
        return plain

    def unprotect_rtcp(self, packet: bytes) -> bytes:
        """Authenticate and decrypt an RTCP datagram. Raises SrtpError."""
        self._check_source(ssrc := packet[4:8])
        packet = _without_mki(packet, self._remote_mki, self._rtcp_tag)
        try:
            plain = self._in.unprotect_rtcp(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error
        self._sources.add(ssrc)
        return plain

    def has_restarted(self, packet: bytes) -> bool:
        """Return whether an RTP packet that `unprotect` refused is authentic as the first of a
        stream: its sender has begun its sequence numbers again under the same key."""
        anew = SdesSrtp(self.suite, self._local_key, self._remote_key, b"", self._remote_mki)
        try:
            anew.unprotect(packet)
        except SrtpError:
            return False
        return True

    def _check_source(self, ssrc: bytes) -> None:
        if ssrc not in self._sources and len(self._sources) >= MAX_SSRCS:
            raise SrtpError(f"more than {MAX_SSRCS} SSRCs under one key")


def _with_mki(packet: bytes, mki: bytes, tag: int) -> bytes:
    """Insert the MKI before the last `tag` bytes of a packet."""
    if not mki:
        return packet
    end = len(packet) - tag
    return packet[:end] + mki + packet[end:]


def _without_mki(packet: bytes, mki: bytes, tag: int) -> bytes:
    """Remove the MKI. Raises SrtpError if it is another one, or is missing."""
    if not mki:
        return packet
    end = len(packet) - tag
    start = end - len(mki)
    if start < 0 or packet[start:end] != mki:
        raise SrtpError("the packet's MKI is not that of the SDP")
    return packet[:start] + packet[end:]
