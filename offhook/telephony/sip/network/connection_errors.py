"""Why a connection failed, in words for people."""

import errno
import ssl

_CERTIFICATE = {
    # X509_V_ERR_… of OpenSSL
    9: "is not valid yet",
    10: "has expired",
    18: "is self-signed",
    19: "is signed by an unknown authority",
    20: "is signed by an unknown authority",
    21: "is signed by an unknown authority",
    23: "was revoked",
    62: "is not for that name",
    64: "is not for that address",
}
_NO_CERTIFICATE = {
    "CERTIFICATE_REQUIRED": "the server wants our certificate",
    # of TLS 1.2, which has no alert of its own for it
    "HANDSHAKE_FAILURE": "TLS failed: handshake failure, perhaps for want of our certificate",
}
_REFUSED_CERTIFICATE = {
    # alerts of RFC 8446 §6.2
    "BAD_CERTIFICATE": "is bad",
    "UNSUPPORTED_CERTIFICATE": "is not for clients",
    "CERTIFICATE_REVOKED": "was revoked",
    "CERTIFICATE_EXPIRED": "has expired",
    "CERTIFICATE_UNKNOWN": "is not acceptable",
    "UNKNOWN_CA": "is signed by an authority unknown to it",
    "ACCESS_DENIED": "gives no access",
}
_SYSTEM = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
}


def no_connection(error: Exception, name: str) -> str:
    """Return why connecting to `name`, which its certificate must match, failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _CERTIFICATE.get(error.verify_code)
        return f"the certificate of {name} {what or f'is not valid: {error.verify_message}'}"
    if isinstance(error, ssl.SSLError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return "the server does not speak TLS"
        _, alert, of = (error.reason or "").partition("ALERT_")
        if alert and of in _NO_CERTIFICATE:
            return f"{_NO_CERTIFICATE[of]} (certificate and key of [sip])"
        if alert and of in _REFUSED_CERTIFICATE:
            return f"the server says that our certificate {_REFUSED_CERTIFICATE[of]}"
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError):
        return "connection timed out"
    if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return "the server closed the connection"
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        return _SYSTEM[error.errno]
    return str(error) or type(error).__name__
