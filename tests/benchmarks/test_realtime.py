"""The benchmark of Realtime sessions runs, with few of them."""

import json

import pytest

from benchmarks.realtime.realtime import main


@pytest.mark.slow
def test_a_few_sessions_are_measured_beside_pipecat(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--parts", "dummy,load", "--rounds", "1", "--sessions", "2", "--seconds", "12", "--json"]
    assert main(few) == 0
    ours, peer, our_load, peer_load = json.loads(capsys.readouterr().out)
    assert ours["truncated"][0] >= ours["cut"][0] > 0
    assert peer["cut"][0] > 0
    for load in (our_load, peer_load):
        assert load["cpu"] > 0
        assert load["answer"][0] > 0
