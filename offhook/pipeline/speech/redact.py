"""What looks like a key or a password, in words that others wrote."""

import re

MASK = "****"
MAX_TOLD_CHARS = 300
_SECRET = re.compile(
    r"(?i)\b(bearer\s+|(?:api[_-]?key|password|secret|token)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{4,}"
    r"|\bsk-[\w-]{8,}|\bopenai-insecure-api-key\.[^\s\"',;]+|\boffhook_[\w-]+\.[\w-]+"
)
_CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@\"']{1,300}@")
"""Of a URL: user and password."""
_PLACE = re.compile(r"://|[A-Za-z][A-Za-z0-9-]*\.[A-Za-z]|\d\.\d+\.\d|:\d{2,}|(?:^|\s)/|\bunix:|\n")
"""An address, a host's name, a path."""


def names_no_place(text: str) -> bool:
    """Whether a worker's words about a request may go on to who asked: there is no address, name of
    a host, path, key or password in them."""
    return (
        bool(text)
        and len(text) <= MAX_TOLD_CHARS
        and not _PLACE.search(text)
        and redacted(text) == text
    )


def redacted(text: str) -> str:
    """Without what looks like an API key or a password."""
    text = _CREDENTIALS.sub(rf"\1{MASK}@", text)
    return _SECRET.sub(lambda found: (found[1] or "") + MASK, text)
