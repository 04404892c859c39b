"""Measures how many recognition streams the CPU of this machine can follow."""

from collections.abc import Callable
from statistics import median

from loguru import logger

CPU_LOAD = 0.7
"""Share of the time that a CPU may spend on streams that all speak at once."""
COST_STREAMS = 4
COST_RUNS = 3


def measured_streams(batch_s: Callable[[int], float], chunk_s: float, most: int) -> int:
    """Returns the live streams, 1 to `most`, whose chunks of `chunk_s` the CPU can process in time.
    `batch_s` processes a chunk of so many streams together and returns the time in s it took."""

    def typical_s(streams: int) -> float:
        return median([batch_s(streams) for _ in range(COST_RUNS + 1)][1:])

    one, several = typical_s(1), typical_s(COST_STREAMS)
    each = max((several - one) / (COST_STREAMS - 1), several / COST_STREAMS / 4)
    room = CPU_LOAD * chunk_s - one
    if room < 0:
        logger.warning("this CPU is slower than speech: text will lag behind the caller")
    return max(1, min(most, 1 + int(room / each)))
