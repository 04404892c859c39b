"""libsrtp's sessions on the compiled path: the same state, without pylibsrtp's copies."""

from typing import Any

import pylibsrtp

from offhook.media import native

_SIGNATURE = "srtp_err_status_t(*)(struct srtp_ctx_t_ *, void *, int *)"
"""As libsrtp 2 has it; of another version the functions would take other arguments."""

_ffi: Any = getattr(pylibsrtp, "ffi", None)
_lib: Any = getattr(pylibsrtp, "lib", None)


def _address(name: str) -> int:
    """Where a function of pylibsrtp's libsrtp begins; 0 if it is not the one known."""
    try:
        function = _ffi.addressof(_lib, name)
    except AttributeError:
        return 0
    if _ffi.typeof(function).cname != _SIGNATURE:
        return 0
    return int(_ffi.cast("intptr_t", function))


_FUNCTIONS = tuple(map(_address, ("srtp_protect", "srtp_unprotect", "srtp_unprotect_rtcp")))


def compiled(session: pylibsrtp.Session) -> "native.Srtp | None":
    """Return what does as the session does, and counts with it; None if that is left to Python."""
    if not (native.used and all(_FUNCTIONS)):
        return None
    state: Any = session
    return native.Srtp(session, int(_ffi.cast("intptr_t", state._srtp[0])), *_FUNCTIONS)


class Protector:
    """Protects the RTP that is sent in a session."""

    def __init__(self, session: pylibsrtp.Session) -> None:
        self._session = session
        self._compiled = compiled(session)

    def protect(self, packet: bytes) -> bytes:
        """Return the packet encrypted. Raises pylibsrtp.Error, and ValueError if it is too long."""
        if self._compiled is not None:
            protected = self._compiled.protect(packet)
            if protected is not None:
                return protected
        return self._session.protect(packet)

    def protect_rtcp(self, packet: bytes) -> bytes:
        """Return an RTCP datagram encrypted. Raises as `protect`."""
        return self._session.protect_rtcp(packet)


_POLICY_AES_128 = (1, 30)
_POLICY_AES_256 = (5, 46)
"""How a policy of libsrtp 2 begins: its cipher, and the bytes of key and salt."""


def use_aes_256(policy: pylibsrtp.Policy) -> None:
    """Change a policy for AES-128 in counter mode to AES-256 (RFC 6188), for which libsrtp has the
    cipher and pylibsrtp no profile. Raises pylibsrtp.Error if this libsrtp is not the one known."""
    state: Any = policy
    for part in (state._policy.rtp, state._policy.rtcp):
        words = _ffi.cast("uint32_t *", _ffi.addressof(part))
        if (words[0], words[1]) != _POLICY_AES_128:
            raise pylibsrtp.Error("this libsrtp is not known to have AES-256")
        words[0], words[1] = _POLICY_AES_256
