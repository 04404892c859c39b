"""What `offhook doctor --calls` says of a number of calls follows from what it measures."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.web.app.cli import main as cli
from offhook.web.app.doctor import sizing_io
from offhook.web.app.doctor.sizing import (
    REFERENCE,
    Assumptions,
    Engine,
    Host,
    at_once,
    call_share,
    cost_of,
    lines,
    size,
)

VNNI = Instructions.VNNI
SMALL = Host(2, 24 << 30, VNNI)
LARGE = Host(64, 256 << 30, VNNI, ("NVIDIA H200",) * 8)
A = Assumptions()


def engines(asr="nemotron", tts="pocket", on_gpu=False, instructions=VNNI):
    return {
        "asr": Engine(asr, cost_of("asr", asr, "0.6B", instructions, on_gpu)),
        "tts": Engine(tts, cost_of("tts", tts, "0.6B", instructions, on_gpu)),
    }


def needs(sizing):
    return {n.part.partition(",")[0]: n for n in sizing.needs}


def test_ten_calls_fill_two_cores_as_was_measured():
    """docs/measured.md, calls on a CPU: ten were held on two cores, twelve nearly."""
    one = size(1000, REFERENCE, SMALL, engines(), A)
    assert 1000 / 12 <= one.cores / 2 <= 1000 / 8


def test_two_hundred_calls_on_gpus_need_one_of_each_kind_and_spares():
    sizing = size(200, REFERENCE, LARGE, engines("qwen3-asr", "qwen3-tts"), A)
    assert [needs(sizing)[part].gpus for part in ("recognition", "voices")] == [1, 1]
    assert (sizing.machines, sizing.gpu_machines) == (2, 4)
    assert sizing.new_calls_per_s == pytest.approx(200 / 180)
    assert sizing.cells == 1


def test_100_000_calls_are_those_of_the_sheet_in_the_docs():
    sizing = size(100_000, REFERENCE, LARGE, engines("qwen3-asr", "qwen3-tts"), A)
    found = needs(sizing)
    assert (found["recognition"].gpus, found["voices"].gpus) == (82, 43)
    assert found["voices"].processes == 129
    assert sizing.cells == 8
    assert any("cells" in note for note in sizing.notes)


def test_few_calls_are_planned_for_chance_and_many_for_the_mean():
    assert at_once(1, 0.4, A) == 1
    assert at_once(10, 0.4, A) == 9
    assert at_once(10_000, 0.4, A) == 5715


def test_a_slower_machine_takes_fewer_calls():
    slow = replace(
        REFERENCE,
        **{name: 2 * value for name, value in vars(REFERENCE).items()},
    )
    assert call_share(slow, A) == pytest.approx(2 * call_share(REFERENCE, A))
    fast, slower = (size(1000, parts, SMALL, engines(), A).cores for parts in (REFERENCE, slow))
    assert slower == pytest.approx(2 * fast)


def test_a_cpu_without_vnni_needs_more_cores():
    with_vnni, without = (
        size(1000, REFERENCE, SMALL, engines(instructions=i), A).cores
        for i in (VNNI, Instructions.AVX)
    )
    assert without > 1.4 * with_vnni


def test_an_engine_that_nothing_is_known_of_is_left_out_and_said():
    sizing = size(100, REFERENCE, SMALL, engines(tts="qwen3-tts-official"), A)
    assert set(needs(sizing)) == {"edges", "recognition"}
    assert "[tts] qwen3-tts-official: nothing is measured of it, so it is not counted" in (
        sizing.notes
    )


def test_the_report_says_what_was_assumed_and_that_gpus_are_not_those_measured():
    host = replace(LARGE, gpus=("NVIDIA L4",))
    text = "\n".join(
        lines(size(200, REFERENCE, host, engines("qwen3-asr", "qwen3-tts"), A), REFERENCE, host, A)
    )
    for words in ("40% of the time", "agent 45%", "used to 70%", "1 spare machine", "NVIDIA L4"):
        assert words in text


def test_this_machine_is_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--calls", "200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["calls"] == 200
    assert told["machines"] >= 2
    assert all(cost > 0 for cost in told["measured"].values())
    assert 0.005 < told["call_share"] < 0.5
    assert told["assumptions"]["caller_speaks"] == 0.40
    assert [n["part"] for n in told["needs"]] == [
        "edges",
        "recognition, pocketsphinx en-us",
        "voices, embedded",
    ]


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_no_number_of_calls_is_refused(number, capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--calls", number])
    assert "no number of calls" in capsys.readouterr().err or number == "-1"


async def test_the_workers_of_a_list_are_asked_what_they_take(tmp_path, monkeypatch):
    async def ready(request: web.Request) -> web.Response:
        return web.json_response({"ready": True, "model": "org/good-ears", "max_streams": 100})

    async def listed(request: web.Request) -> web.Response:
        return web.json_response(
            {"workers": [{"url": url}, {"url": f"http://localhost:{server.port}"}]}
        )

    app = web.Application()
    app.router.add_get("/readyz", ready)
    app.router.add_get("/workers", listed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sizing_io, "measure", lambda: REFERENCE)
    async with TestServer(app, host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("OFFHOOK_ASR_URL", f"{url}/workers")
        monkeypatch.setenv("OFFHOOK_TTS_URL", "http://127.0.0.1:1")
        told = json.loads(await asyncio.to_thread(sizing_io.report, 500, None, True))
    [_, asr] = told["needs"]
    assert asr["part"] == "recognition, good-ears"
    assert asr["processes"] == 3  # 286 callers at once
    assert "100 a worker, as the " in asr["why"]
    assert any("[tts] of http://127.0.0.1:1, where no worker answers" in n for n in told["notes"])
