"""Times as they are shown: ISO 8601 in UTC."""

from datetime import UTC, datetime


def iso(at: float) -> str:
    """Returns a time, seconds since 1970, as ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "milliseconds")
