"""What looks like a key or a password, in words that others wrote."""

import re

MASK = "****"
_SECRET = re.compile(
    r"(?i)\b(bearer\s+|(?:api[_-]?key|password|secret|token)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{4,}"
    r"|\bsk-[\w-]{8,}|\bopenai-insecure-api-key\.[^\s\"',;]+|\boffhook_[\w-]+\.[\w-]+"
)
_CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@\"']{1,300}@")
"""Of a URL: user and password."""


def redacted(text: str) -> str:
    """Without what looks like an API key or a password."""
    text = _CREDENTIALS.sub(rf"\1{MASK}@", text)
    return _SECRET.sub(lambda found: (found[1] or "") + MASK, text)
