"""Who may ask: what every server of ours looks at in a request before anything else."""

import hmac

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def has_key(authorization: str, key: str) -> bool:
    """Whether the Authorization header carries the key as a bearer token. Takes the same time for
    every wrong key; with no key to ask for, everybody has it."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer":  # a scheme is of any case (RFC 9110 §11.1)
        given = ""
    given = given.strip(" ")
    # A header may hold any bytes; aiohttp keeps those that are not UTF-8 as surrogates.
    return not key or hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode())


def is_foreign(origin: str, host: str) -> bool:
    """Whether a browser says (Origin header) that the page which asks is of another site than the
    server (Host header). Programs that are no browser say nothing."""
    return bool(origin) and origin.partition("://")[2] != host
