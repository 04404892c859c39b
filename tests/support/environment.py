"""The environment of a server that a test starts."""

import os
from pathlib import Path

OF_TESTS = {
    # This machine may be busy with other work, for which a server must not refuse a test's calls.
    "OFFHOOK_SERVER_MAX_LATENESS_MS": "0",
    # Where there is a network, a test must not wait for models nor be heard by other engines.
    "OFFHOOK_ENGINES_OFFLINE": "true",
    # Calls of tests are nobody's business afterwards, except in tests of what is kept.
    "OFFHOOK_RECORDS_URL": "",
}


def environment(**more: str) -> dict[str, str]:
    """Returns this process's without what sets up a server of the one who runs the tests, with the
    package as it is here, and `more`."""
    kept = {name: value for name, value in os.environ.items() if "OFFHOOK_" not in name}
    return {**kept, **OF_TESTS, "PYTHONPATH": str(Path(__file__).parents[2]), **more}
