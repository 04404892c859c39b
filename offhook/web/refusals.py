"""Why a call is not taken."""

RETRY_AFTER_SECONDS = 10
"""When a caller may try again who was told that all lines are busy."""


class Busy(Exception):
    """No more calls now."""


class NoPhones(Exception):
    """The configuration has none."""
