"""Why a connection could not be made, in words for people."""

import errno
import ssl

_CERTIFICATE = {
    # X509_V_ERR_… of OpenSSL
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself, and nobody we trust vouches for it",
    19: "is signed by an authority that we do not know",
    20: "is signed by an authority that we do not know",
    21: "is signed by an authority that we do not know",
    23: "was revoked",
    62: "is not for that name",
    64: "is not for that address",
}
_SYSTEM = {
    errno.ECONNREFUSED: "nobody listens there",
    errno.EHOSTUNREACH: "there is no way to that host",
    errno.ENETUNREACH: "there is no way to that network",
}


def no_connection(error: Exception, name: str) -> str:
    """What has kept us from connecting to `name`, which its certificate must be for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _CERTIFICATE.get(error.verify_code)
        return f"the certificate of {name} {what or f'is not good: {error.verify_message}'}"
    if isinstance(error, ssl.SSLError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return "what listens there does not speak TLS"
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError):
        return "no connection came about in time"
    if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return "it closed the connection"
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        return _SYSTEM[error.errno]
    return str(error) or type(error).__name__
