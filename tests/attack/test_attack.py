"""The table of attacks finds every attack, measures what it says it does, and all servers hold."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web

from benchmarks.processes.process import child
from tests.attack import __main__ as attack
from tests.attack.attacks import all_attacks, is_attack
from tests.attack.targets import TARGETS

SECONDS = 2.0
"""Of each attack, when the rest of the tests runs too."""


def row(**fields: object) -> attack.Row:
    quiet = {"memory_mb": (100.0, 120.0, 105.0), "seconds": 5.0, "quiet_gap_ms": 21.0}
    return attack.Row("edge", "known.x", **{"got": "refused", **quiet, **fields})  # type: ignore[arg-type]


def test_every_attack_is_found() -> None:
    found = all_attacks()
    modules = {path.stem for path in Path(__file__).parent.glob("*.py")}
    tools = {"__init__", "__main__", "attacker", "attacks", "innocent", "targets", "test_attack"}
    assert {name.partition(".")[0] for name in found} == modules - tools
    assert next(iter(found)) == attack.NOTHING
    assert "known.invite_flood" in found
    assert not is_attack(all_attacks)


def test_an_attack_is_given_what_the_server_offers_and_is_left_out_where_that_is_missing() -> None:
    flood, stun = all_attacks()["known.invite_flood"], all_attacks()["known.stun_flood"]
    assert flood.arguments({"calls": True, "sip_port": 5060, "pid": 1}) == {"sip_port": 5060}
    assert flood.arguments({"calls": True}) is None
    assert stun.arguments({"calls": True}) == {}
    assert stun.arguments({"pid": 1}) is None


def test_what_is_within_its_limits_has_no_mark() -> None:
    assert row(gap_ms=80.0, healthz_ms=99.0, lines={"WARNING x": 1, "INFO y": 1}).misses() == []


@pytest.mark.parametrize(
    ("fields", "missed"),
    [
        ({"gap_ms": 82.0}, "gap"),
        ({"healthz_ms": 101.0}, "healthz"),
        ({"memory_mb": (100.0, 120.0, 111.0)}, "memory"),
        ({"lines": {"WARNING x": 2}}, "log"),
        ({"lines": {"INFO x": 2}}, "log"),
        ({"tracebacks": 1}, "traceback"),
        ({"destroyed": 1}, "destroyed"),
        ({"lost": ["the call has ended"]}, "cut off"),
    ],
)
def test_what_is_not_is_marked(fields: dict[str, object], missed: str) -> None:
    one = row(**fields)
    assert one.misses() == [missed]
    assert any(cell.endswith(" !") for cell in one.cells())
    assert f"! {missed}" in attack.matrix([one])


def test_lines_are_of_a_kind_whatever_varies_in_them() -> None:
    log = (
        "2026-01-02 12:00:00.000 WARNING malformed STUN from 127.0.0.1:4000: 'abc'\n"
        "2026-01-02 12:00:01.000 WARNING malformed STUN from 127.0.0.1:4001: 'd'\n"
        "  Traceback (most recent call last):\n"
        "2026-01-02 12:00:02.000 INFO    ready in 1.2 s\n"
        "2026-01-02 12:00:03.000 INFO    3f4e5d6c7b8a: call_started agent='frontdesk'\n"
        "2026-01-02 12:00:03.000 INFO    [2] POST /v1/audio/speech 200: done_ms 12.0; 3f4e\n"
    )
    assert sorted(attack.kinds_of(log).values()) == [1, 2]


async def test_a_server_that_stands_still_is_noticed() -> None:
    """By the probe, which is another process."""
    stalls: list[float] = []

    async def health(request: web.Request) -> web.Response:
        if not stalls and request.query_string == "":
            stalls.append(time.monotonic())
            time.sleep(0.4)  # noqa: ASYNC251  as an attack does
        return web.Response()

    app = web.Application()
    app.router.add_get("/healthz", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with child("tests.attack.innocent", "health", url) as probe:
            probe.send("look")
            (noticed,) = (await probe.line(30))["noticed"]
            assert noticed["longest_ms"] > 400
            assert noticed["lost"] == 0
            await runner.cleanup()
            await asyncio.sleep(0.3)
            probe.send("look")
            (noticed,) = (await probe.line(30))["noticed"]
            assert noticed["lost"] > 0
    finally:
        await runner.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_all_servers_hold_against_all_attacks(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For how long others waited meanwhile: `python -m tests.attack` on a quiet machine."""
    attack.main(["--target", target, "--seconds", str(SECONDS), "--rest", "1", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["attack"] for row in rows] == list(all_attacks())
    applied = [row for row in rows if row["got"] != "not applicable"]
    assert len(applied) > 5
    for one in applied:
        assert "did not come to an end" not in one["got"], one
        assert "the attacker died" not in one["got"], one
        assert not {"traceback", "destroyed", "cut off"} & {*one["misses"]}, one
