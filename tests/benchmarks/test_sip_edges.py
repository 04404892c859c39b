"""`offhook bench sip load --edges 2`: two server processes behind Kamailio, measured as one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.callers import pair
from benchmarks.callers.pair import CpuShares, ResourceUse, Snapshot, Usage, cpus
from benchmarks.servers import kamailio as sip_kamailio
from benchmarks.servers.kamailio import KamailioError, kamailio
from benchmarks.servers.line_stats import COUNTED
from benchmarks.sip import load as sip_load
from benchmarks.sip import sip
from tests.telephony.sip.phones import needs_kamailio

ONE = Usage(10.0, 1.0, 5, {"p99": 1.5}, 2, 2, 4, 3.0, dict.fromkeys(COUNTED, 1000), [4.0, 4.4])
OTHER = replace(ONE, wall_s=10.5, cpu_s=3.0, calls=3, lag_ms={"p99": 9.0}, mos=[4.2])


def test_two_edges_are_one_server_that_is_as_late_as_the_later() -> None:
    whole = ONE + OTHER
    assert (whole.cpu_s, whole.calls, whole.tasks) == (4.0, 5, 10)
    assert whole.lag_ms == {"p99": 9.0}
    assert whole.lines == dict.fromkeys(COUNTED, 2000)
    assert whole.mos == [4.0, 4.2, 4.4]
    assert replace(OTHER + ONE, wall_s=ONE.wall_s) == ONE + OTHER


def test_what_each_did_stands_beside_the_sum() -> None:
    first = Snapshot([ONE, OTHER], proxy_cpu_s=1.0)
    last = Snapshot(
        [replace(ONE, wall_s=14.0, cpu_s=2.0), replace(OTHER, wall_s=14.5, cpu_s=3.4)], 1.08
    )
    assert CpuShares.between(first, last) == CpuShares([2, 3], [25.0, 10.0], 2.0)
    assert ResourceUse.between(first.whole, last.whole).cpu_percent == 35.0


def test_edges_have_cores_of_their_own_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = {0, 1, 2}
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores)
    assert cpus(True) == [0, 2]
    assert cpus(True, 2) == [0, 1, 2]
    assert cpus(True, 3) == [None] * 4
    assert cpus(False, 2) == [None] * 3
    cores = {5}
    assert cpus(True) == [None, None]


def test_each_edge_adds_what_a_process_holds(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--calls", "1000", "--edges", "2"], ["--edges", "0"]):
        with pytest.raises(SystemExit):
            sip.main(["load", *wrong])
    assert "edge" in capsys.readouterr().err


async def test_without_kamailio_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KamailioError, match="not installed"):
        async with kamailio([9]):
            pass


@needs_kamailio
async def test_a_configuration_that_is_wrong_is_said_so() -> None:
    with pytest.raises(KamailioError, match="did not start"):
        async with kamailio([9], PROCESSES="many"):
            pass


@needs_kamailio
@pytest.mark.slow
async def test_calls_are_measured_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "WARM_UP_S", 0.3)
    monkeypatch.setattr(pair, "SETTLE_S", 0.3)
    rows: list[sip_load.Row] = []
    found = await sip_load.load("echo", 4, 20, 1.0, False, 100, rows.append, edges=2)
    held, churn = found.rows
    assert rows == found.rows
    assert found.options is None
    assert held.calls == 4
    assert churn.calls >= 3  # one may have ended, and the next not begun
    assert held.shares is not None
    assert held.shares.calls == [2, 2]
    assert churn.setups > 5
    assert churn.setup_ms["p95"] > 0
    assert held.packets > 4 * 30
    total = sum(held.shares.cpu_percent)
    assert held.spent.cpu_percent == pytest.approx(total, rel=0.1)
    assert held.cpu_per_call_percent == pytest.approx(held.spent.cpu_percent / 4, abs=0.01)
    assert "2 calls" in sip_load.summary("echo", found)
    assert json.loads(json.dumps(sip_load.as_dict(held)))["shares"]["calls"] == [2, 2]


def test_without_the_option_nothing_is_said_of_shares() -> None:
    row: Any = sip_load.Row(
        *("vad", "held", 5, 5, 1.0, 0, {}, {}, 0, 0, 9, 0, {}, {}),
        *(ResourceUse.between(ONE, replace(ONE, wall_s=11.0)), 0.5, None, 0.0, {}),
    )
    assert "shares" not in sip_load.as_dict(row)


def test_the_configuration_is_where_the_benchmark_looks_for_it() -> None:
    assert sip_kamailio.CONFIGURATION.exists()
