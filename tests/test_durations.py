"""No test of `make test` says how long something takes: a busy machine would fail it."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.support.durations import find

TESTS = Path(__file__).parent
MEASURING = {"benchmarks"}
"""Rooms in which every function may measure."""
ALLOWED = {
    "attack/test_attack.py::test_a_server_that_stands_still_is_noticed": (
        "at least as long as it stands still"
    ),
    "benchmarks/test_bench.py::test_whole_speech_has_no_holes": (
        "late by the times that it is given"
    ),
    "benchmarks/test_bench.py::test_what_was_sent_ahead_makes_the_others_no_later": (
        "early by the times that it is given"
    ),
    "benchmarks/test_balance.py::"
    "test_workers_that_vanish_are_left_within_a_second_at_a_bounded_rate": "a simulation's time",
    "benchmarks/test_turn_taking.py::test_the_words_of_a_slow_recognizer_come_late": "virtual time",
    "benchmarks/test_turn_taking.py::test_a_final_waits_for_the_partial_before_it": "virtual time",
    "benchmarks/test_tts.py::test_a_machine_too_slow_holds_few": "a simulation's time",
    "browser/test_page.py::test_a_call_from_the_page": "a bar is as wide as its figure says",
    "web/edge/resume/test_recovery_edges.py::test_a_phone_whose_server_dies_goes_on_at_another": (
        "at least as long as the lease that it waits for"
    ),
    "web/edge/resume/test_lying_redis.py::answered": "late is as good as an error to it",
    "web/realtime/test_openai_python.py::test_a_session_that_lasts_too_long_expires": (
        "a moment that was named before"
    ),
}
"""What compares times and does not depend on how busy a machine is, and why."""


def test_no_test_compares_measured_times() -> None:
    found: dict[str, str] = {}
    for path in TESTS.rglob("*.py"):
        room, name = path.relative_to(TESTS).parts[0], path.relative_to(TESTS).as_posix()
        if room == "attack" and not path.name.startswith("test_"):
            continue  # attacks are as long as they are told
        for finding in find(path.read_text(), figures=room in MEASURING):
            found[f"{name}::{finding.function}"] = f"line {finding.line}: {finding.text}"
    assert {place: text for place, text in found.items() if place not in ALLOWED} == {}
    assert ALLOWED.keys() <= found.keys(), "allowed, and no longer there"


PLANTED = {
    "a difference": """
        began = time.monotonic()
        work()
        assert time.monotonic() - began < 0.5
    """,
    "by names": """
        began = perf_counter()
        took = perf_counter() - began
        assert 0.1 < took
    """,
    "CPU": """
        before = time.thread_time()
        work()
        best = min(9.0, time.thread_time() - before)
        assert best * 1000 <= 20
    """,
    "a list": """
        times = []
        for _ in range(9):
            at = loop.time()
            times.append(asyncio.get_running_loop().time() - at)
        assert sorted(times)[5] < 0.01
    """,
    "a deadline": """
        late = time.monotonic() + 3
        work()
        assert time.monotonic() < late
    """,
    "nanoseconds": """
        a = time.perf_counter_ns()
        assert (time.perf_counter_ns() - a) / 1e9 < 2
    """,
    "about": """
        began = time.time()
        assert time.time() - began == pytest.approx(1, abs=0.1)
    """,
    "a helper": """
        def seconds(length):
            began = time.process_time()
            parse("x" * length)
            return time.process_time() - began
        assert seconds(10_000) < 10 * seconds(1_000)
    """,
    "an attribute": """
        self.began = time.monotonic()
        assert time.monotonic() - self.began < LIMIT_S
    """,
    "a tuple": """
        began, found = time.monotonic(), []
        found.append(time.monotonic() - began)
        assert all(at < 0.3 for at in found)
    """,
    "a figure": "assert report['setup_ms']['p95'] < 200",
    "a figure between": "assert 55 < leg.statistics().round_trip_ms < 80",
    "a figure by a name": "assert answer.latency_s <= LIMIT",
    "a figure of a page": "assert seen['noticedAfter'] < 15_000",
    "a tight limit": """
        async with asyncio.timeout(0.5):
            await done.wait()
    """,
    "a limit by a name": """
        SOON = 2.0
        await asyncio.wait_for(done.wait(), SOON)
    """,
    "a limit of a helper": """
        async def come(what, within):
            async with asyncio.timeout(within):
                await what
        await come(done, 3)
    """,
    "a condition": """
        took = time.monotonic() - began_at(time.monotonic())
        if took > 0.2:
            pytest.fail("too slow")
    """,
    "a limit that fails": """
        try:
            await asyncio.wait_for(done.wait(), 3)
        except TimeoutError:
            raise AssertionError("nothing came") from None
    """,
    "a loop that is short": """
        until = time.monotonic() + 2
        while not done():
            assert time.monotonic() < until
    """,
}


def of_a_test(source: str) -> str:
    return "async def test_it():\n" + indent(dedent(source), "    ")


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_it_finds(source: str) -> None:
    assert find(of_a_test(source))


INNOCENT = {
    "order": """
        before = time.monotonic()
        event = work()
        assert before <= event.at <= time.monotonic()
    """,
    "a guard": """
        async with asyncio.timeout(60):
            await done.wait()
    """,
    "a loop that would hang": """
        until = time.monotonic() + 60
        while not done():
            assert time.monotonic() < until
    """,
    "nothing comes": """
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.2)
    """,
    "enough": """
        try:
            async with asyncio.timeout(0.5):
                await done.wait()
        except TimeoutError:
            pass
    """,
    "more than nothing": "assert report['setup_ms']['max'] > 0",
    "parts of a whole": "assert stages['first_ms'] <= stages['total_ms']",
    "how many": "assert len(report.latencies_ms) >= 3",
    "of sound": "assert final.audio_ms < 1000",
    "sleep": "await asyncio.sleep(0.1)",
    "a number": "assert loud > 0.05",
    "slow": """
        @pytest.mark.slow
        def test_that_is_slow():
            began = time.monotonic()
            assert time.monotonic() - began < 1
    """,
}


@pytest.mark.parametrize("source", INNOCENT.values(), ids=INNOCENT)
def test_it_leaves_alone(source: str) -> None:
    assert find(of_a_test(source)) == []
