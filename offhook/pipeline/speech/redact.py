"""Removes keys, passwords and locations from messages of other servers."""

import re

MASK = "****"
MAX_SHOWN_CHARS = 300
"""Maximum length of a message that is shown; a longer one may hold anything and is left out."""
_SECRET = re.compile(
    r"(?i)\b(bearer\s+|(?:api[_-]?key|password|secret|token)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{4,}"
    r"|\bsk-[\w-]{8,}|\bopenai-insecure-api-key\.[^\s\"',;]+|\boffhook_[\w-]+\.[\w-]{20,}"
)
_CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@\"']{1,300}@")
"""User and password in a URL."""
_PLACE = re.compile(r"://|[A-Za-z][A-Za-z0-9-]*\.[A-Za-z]|\d\.\d+\.\d|:\d{2,}|(?:^|\s)/|\bunix:|\n")
"""A URL, host name, address or path."""


def without_locations(text: str) -> bool:
    """Returns whether a worker's message about a request may be shown to the client: it contains no
    address, host name, path, key or password."""
    return (
        bool(text)
        and len(text) <= MAX_SHOWN_CHARS
        and not _PLACE.search(text)
        and redacted(text) == text
    )


def redacted(text: str) -> str:
    """Returns the text with everything that looks like an API key or password masked."""
    text = _CREDENTIALS.sub(rf"\1{MASK}@", text)
    return _SECRET.sub(lambda found: (found[1] or "") + MASK, text)
