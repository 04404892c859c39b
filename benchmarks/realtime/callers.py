"""Many sessions as a child of a benchmark: each client speaks for two seconds of every ten, with
its microphone on all the time, and is answered. Prints a line when all are there, and after SECONDS
one with what they measured."""

import argparse
import asyncio
import random
import time

import aiohttp

from benchmarks.processes.process import OwnCost, say
from benchmarks.realtime.sessions import DIALECTS, Session
from benchmarks.speech.lines import voiced
from offhook.web.http.loop_io import run

LINE = "What are your opening hours on Sunday, please?"
PERIOD_S = 10.0
RAMP_S = 0.1
"""Time in s from one new session to the next."""
HEARD_S = 6.0
"""What is not answered by then is counted as unanswered."""


async def converse(session: Session, line: list[str | bytes], answers: list[float | None]) -> None:
    """Speaks in each period, for ever."""
    await asyncio.sleep(random.uniform(0, PERIOD_S))
    while True:
        began = time.monotonic()
        await session.say(line)
        ended = session.spoken_at
        try:
            async with asyncio.timeout(HEARD_S):
                answers.append((await session.next("audio", ended) - ended) * 1000)
        except TimeoutError:
            answers.append(None)
        await asyncio.sleep(began + PERIOD_S - time.monotonic())


async def call(url: str, dialect: type[Session], sessions: int, seconds: float) -> None:
    line = dialect.chunks((await voiced(LINE))[LINE])
    there: list[Session] = []
    answers: list[float | None] = []
    own = OwnCost()
    async with aiohttp.ClientSession() as http:
        for _ in range(sessions):
            session = dialect()
            await session.open(http, url)
            there.append(session)
            await asyncio.sleep(RAMP_S)
        talks = [asyncio.create_task(converse(one, line, answers)) for one in there]
        talks.append(asyncio.create_task(own.watch()))
        await asyncio.sleep(PERIOD_S)
        answers.clear()
        say({"ready": sessions})
        own.begin()
        await asyncio.sleep(seconds)
        cost = own.read()
        heard = sorted(answer for answer in answers if answer is not None)
        say(
            {
                "connect_ms": sorted(round(one.connect_ms, 1) for one in there),
                "answer_ms": [round(ms, 1) for ms in heard],
                "unanswered": len(answers) - len(heard),
                "callers_core": round(cost["cpu_percent"] / 100, 2),
                "callers_lag_ms": cost["lag_ms"]["p99"],
            }
        )
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in there))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialect", choices=sorted(DIALECTS))
    parser.add_argument("sessions", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("url")
    a = parser.parse_args()
    say({})
    run(call(a.url, DIALECTS[a.dialect], a.sessions, a.seconds))


if __name__ == "__main__":
    main()
