"""One attack, in a process of its own that gives way to everybody else.

    python -m tests.attack.attacker NAME BASE SECONDS ARGUMENTS

ARGUMENTS is JSON. It says one line of JSON: what it got.
"""

import asyncio
import json
import os
import sys

from loguru import logger

from benchmarks.processes.process import say
from tests.attack.attacks import all_attacks

NICENESS = 15
"""So that what the innocent notice is the server's doing, not the attacker's share of the cores."""
LATE_S = 60.0
"""For which an attack may go on after its time."""


async def main(name: str, base: str, seconds: float, arguments: str) -> None:
    logger.remove()
    os.nice(NICENESS)
    found = all_attacks()[name]
    say({"ready": True})
    await asyncio.to_thread(sys.stdin.readline)  # all else is measured from here on
    try:
        async with asyncio.timeout(seconds + LATE_S):
            got = await found.run(base, seconds, **json.loads(arguments))
    except TimeoutError:
        got = "did not come to an end"
    except Exception as error:  # an attack that fails has got that
        got = f"{type(error).__name__}: {error}"
    say({"got": got})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
