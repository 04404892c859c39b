"""What the doctor says of a machine is so."""

import asyncio
import json
import os
import socket
import sys
from importlib.metadata import version

import pytest
from aiohttp import web

from offhook.media import native
from offhook.pipeline.engines.embedded import espeak_io, here_io
from offhook.pipeline.speech import engine_spec
from offhook.pipeline.speech.errors import EngineError
from offhook.web.app.cli import main as cli
from offhook.web.app.doctor import report_io as doctor_io
from offhook.web.app.doctor.report_io import PINNED, Finding, examine
from offhook.web.config.config import load
from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
from offhook.web.workers.engines import engines_io
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation import phone
from tests.pipeline.conversation.agents.test_agent_faults import FAULTS
from tests.pipeline.conversation.speller import Speller
from tests.pipeline.speech.openai.openai_server import openai_stub
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.support import tiny_sherpa, turn_models
from tests.web.workers.workers import worker_app


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_engines(monkeypatch):
    """Loading the models takes a second; one test does it."""
    for name in ("_opus", "_vad", "_smart_turn"):
        monkeypatch.setattr(doctor_io, name, lambda: "not asked")
    for name in ("_pocketsphinx", "_flite", "_espeak"):
        monkeypatch.setattr(here_io, name, lambda: "not asked")


def found(findings, subject):
    return next(f for f in findings if f.subject == subject)


def test_this_machine_can_take_calls(capsys):
    assert cli.main(["doctor", "--json"]) in (0, 1)
    findings = {f["subject"]: f for f in json.loads(capsys.readouterr().out)}
    for subject in ("opus", "voice activity", "end of turn", "hearing"):
        assert findings[subject]["verdict"] == "ok", findings[subject]
    assert "libopus" in findings["opus"]["detail"]
    speaking = [findings["speaking"]["verdict"], findings["speaking, fall-back"]["verdict"]]
    assert "ok" in speaking


@pytest.mark.usefixtures("no_engines")
def test_the_model_that_judges_turns_is_the_configured_one(tmp_path):
    path, file = tmp_path / "offhook.toml", tmp_path / "eou.onnx"
    path.write_text('[turn]\nmodel = "words"')
    assert found(examine(path), "end of turn").detail == "by the words and silence, without a model"
    path.write_text(f'[turn]\nmodel = "{file}"')
    missing = found(examine(path), "end of turn")
    assert (missing.verdict, missing.detail) == ("fails", f"{file}: there is no such file")
    turn_models.loudness(file, 1, 32_000)
    there = found(examine(path), "end of turn")
    assert (there.verdict, there.detail) == ("ok", "eou.onnx, asked about 2 s of audio")
    turn_models.with_state(file)
    other = found(examine(path), "end of turn")
    assert other.verdict == "fails"
    assert other.detail.startswith(f"{file} takes sound float32 [1, 512], state float32 [1, 512];")


@pytest.mark.usefixtures("no_engines")
def test_pins_are_what_is_installed():
    findings = examine(None)
    for package in PINNED:
        assert found(findings, package).verdict == "ok"
        assert found(findings, package).detail == version(package) == PINNED[package]


@pytest.mark.usefixtures("no_engines")
def test_the_path_of_packets_is_named(monkeypatch):
    monkeypatch.setattr(native, "used", True)
    assert found(examine(None), "packets").detail == "compiled"
    monkeypatch.setattr(native, "used", False)
    assert found(examine(None), "packets").verdict == "note"
    assert "in Python" in found(examine(None), "packets").detail


@pytest.mark.usefixtures("no_engines")
def test_another_version_than_the_pinned_fails(monkeypatch, capsys):
    monkeypatch.setitem(PINNED, "aiortc", "0.0.1")
    assert cli.main(["doctor"]) == 1
    assert f"fails  aiortc: {version('aiortc')}, not 0.0.1" in capsys.readouterr().out


@pytest.mark.usefixtures("no_engines")
def test_a_configuration_that_cannot_be_used_fails_and_the_rest_is_still_looked_at(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[server]\nprot = 1")
    findings = examine(path)
    assert found(findings, "configuration").verdict == "fails"
    assert "server.prot" in found(findings, "configuration").detail
    assert found(findings, "opus").verdict == "ok"


@pytest.mark.usefixtures("no_engines")
def test_python_functions_that_are_tools_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_desk.py").write_text('def book(day: str):\n    """Books a day."""\n')
    path = tmp_path / "offhook.toml"
    path.write_text(
        '[agents.desk]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
        'tools = [{name = "book", function = "my_desk:book"},'
        ' {name = "gone", function = "my_desk:gone"}]\n'
    )
    findings = examine(path)
    assert found(findings, "agents.desk book").detail == "my_desk:book(day)"
    gone = found(findings, "agents.desk gone")
    assert (gone.verdict, "has no attribute 'gone'" in gone.detail) == ("fails", True)
    sys.modules.pop("my_desk")


def test_a_port_in_use_is_noted(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = tmp_path / "offhook.toml"
        path.write_text(f"[server]\nport = {taken.getsockname()[1]}")
        port = found(examine(path), "port")
    assert port.verdict == "note"
    assert port.detail == "address already in use; another server is running there"


@pytest.mark.usefixtures("no_engines")
def test_a_server_that_would_stand_open_is_told_so_before_it_starts(tmp_path):
    path = tmp_path / "offhook.toml"
    path.write_text(
        '[server]\nhost = "0.0.0.0"\n[[sip.trunks]]\nname = "pbx"\nserver = "192.0.2.1"'
    )
    operator = found(examine(path), "operator")
    assert operator.verdict == "fails"
    assert "pbx" in operator.detail
    assert "[server] admin_key" in operator.detail
    path.write_text('[server]\nhost = "0.0.0.0"\nadmin_key = "k"\n[[sip.trunks]]\nname = "pbx"')
    assert found(examine(path), "operator").verdict == "ok"


@pytest.mark.usefixtures("no_engines")
def test_no_gpu_is_said_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu = found(examine(None), "gpu")
    assert gpu.verdict == "note"
    assert gpu.detail.startswith("no nvidia-smi here; ")


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("script", "verdict", "says"),
    [
        ("echo 'NVIDIA H200, 143771 MiB, Enabled'", "ok", "H200, 143771 MiB, persistence on"),
        ("echo 'NVIDIA H200, 143771 MiB, Disabled'", "ok", "MiB, persistence off: a worker that"),
        ("printf 'A, 1 MiB, Enabled\\nB, 2 MiB, [N/A]\\n'", "ok", "persistence on; B, 2 MiB"),
        ("echo 'no driver'; exit 9", "note", "need none"),
        ("exec sleep 5", "note", "timed out"),
    ],
)
def test_a_gpu_is_named_and_a_broken_driver_is_no_reason_to_fail(
    tmp_path, monkeypatch, script, verdict, says
):
    """nvidia-smi without a loaded driver exits with an error; with a hung one it never ends."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor_io, "GPU_QUERY_TIMEOUT_S", 0.3)
    gpu = found(examine(None), "gpu")
    assert gpu.verdict == verdict
    assert says in gpu.detail


@pytest.mark.usefixtures("no_engines")
def test_recording_is_looked_at_when_it_is_on(tmp_path):
    path = tmp_path / "offhook.toml"
    path.write_text(f"[recording]\nenabled = true\ndirectory = '{tmp_path / 'calls'}'")
    assert found(examine(path), "recording").verdict == "ok"
    path.write_text("[recording]\nenabled = true\ndirectory = '/proc/nothing'")
    failed = found(examine(path), "recording")
    assert failed.verdict == "fails"
    assert failed.detail.startswith("cannot write to /proc/nothing: ")
    assert failed.detail.endswith("or set [recording] directory")


@pytest.mark.usefixtures("no_engines")
def test_records_of_calls_must_have_a_place(tmp_path):
    path = tmp_path / "offhook.toml"
    path.write_text(f"[log]\ncalls = '{tmp_path / 'calls.jsonl'}'")
    assert found(examine(path), "records of calls").verdict == "ok"
    path.write_text(f"[log]\ncalls = '{tmp_path / 'no' / 'calls.jsonl'}'")
    failed = found(examine(path), "records of calls")
    assert failed.verdict == "fails"
    assert failed.detail == (
        f"there is no folder {tmp_path / 'no'}: create it, or set [log] calls to another file"
    )


def test_an_engine_that_is_missing_fails_or_names_what_takes_its_place(monkeypatch):
    def missing():
        raise EngineError("libflite is not installed: apt install libflite1")

    monkeypatch.setattr(here_io, "_flite", missing)
    monkeypatch.setattr(here_io, "_pocketsphinx", missing)
    findings = examine(None)
    assert found(findings, "speaking").verdict == "note"
    assert "eSpeak NG speaks instead" in found(findings, "speaking").detail
    assert found(findings, "hearing").verdict == "fails"
    assert "apt install libflite1" in found(findings, "hearing").detail


@pytest.mark.parametrize("flite", [True, False])
def test_a_fall_back_that_is_not_installed_is_missed_only_where_it_is_needed(monkeypatch, flite):
    def missing():
        raise EngineError("libflite is not installed")

    monkeypatch.setattr(here_io, "_pocketsphinx", lambda: "")
    monkeypatch.setattr(here_io, "_flite", (lambda: "") if flite else missing)
    monkeypatch.setattr(espeak_io, "find_spec", lambda name: None)
    fall_back = [f for f in examine(None) if f.subject == "speaking, fall-back"]
    if flite:
        assert not fall_back
    else:
        assert fall_back[0].verdict == "fails"
        assert "pip install espeakng-loader" in fall_back[0].detail


@pytest.mark.usefixtures("no_engines")
def test_the_network_is_told(tmp_path):
    path = tmp_path / "offhook.toml"
    path.write_text("[webrtc]\naddresses = ['192.0.2.7']")
    network = found(examine(path), "network")
    assert network.verdict == "ok"
    assert "192.0.2.7" in network.detail
    assert "TURN" in network.detail
    path.write_text("[webrtc]\nport = 7861\npublic_address = '203.0.113.7'")
    assert "203.0.113.7, port 7861 (UDP, and TCP" in found(examine(path), "network").detail
    path.write_text("[webrtc]\nice_servers = [{urls = 'turn:t.example', username = 'u'}]")
    assert "TURN" not in found(examine(path), "network").detail


def test_a_finding_reads_as_a_line():
    assert str(Finding("port", "note", "taken")) == " note  port: taken"


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("engines", "verdict", "says"),
    [
        ("engine = 'espeak'", "ok", "not asked"),
        ("url = 'unix:nobody'", "fails", "no speech worker at unix:nobody"),
        ("engine = 'qwen3-tts'", "fails", "Qwen3-TTS needs torch, not installed here"),
        ("engine = 'qwen3-tts-official'", "fails", "`make qwen-tts-official`"),
    ],
)
def test_the_voice_that_is_configured_is_looked_at(tmp_path, monkeypatch, engines, verdict, says):
    found_by_name = {"torch": None, "qwen_tts": None}
    for module in (engine_spec, engines_io):
        monkeypatch.setattr(module, "find_spec", lambda n: found_by_name.get(n, n))
    monkeypatch.setattr(doctor_io, "find_spec", lambda name: None)
    path = tmp_path / "offhook.toml"
    path.write_text(f"[tts]\n{engines}")
    findings = examine(path)
    assert found(findings, "speaking").verdict == verdict
    assert says in found(findings, "speaking").detail
    assert not [f for f in findings if f.subject == "speaking, fall-back"]


@pytest.mark.usefixtures("no_engines")
def test_a_worker_that_speaks_elsewhere_is_named(tmp_path):
    """While it runs in another thread, for the doctor has a loop of its own."""
    path = tmp_path / "offhook.toml"
    path.write_text(f"[tts]\nurl = 'unix:{tmp_path / 's'}'")

    async def serve():
        worker = Worker(WorkerSettings("speller", "1"), lambda told: Speller(), TtsMetrics())
        runner = web.AppRunner(worker_app(worker), shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        findings = await asyncio.to_thread(examine, path)
        await runner.cleanup()
        await worker.close()
        return findings

    speaking = found(asyncio.run(serve()), "speaking")
    assert speaking.verdict == "ok"
    assert speaking.detail == f"speller, by the worker at unix:{tmp_path / 's'}"


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(("kind", "first"), [("asr", "call"), ("tts", "reply")])
def test_an_official_engine_is_looked_for_in_its_own_environment(
    tmp_path, monkeypatch, kind, first
):
    monkeypatch.setattr("offhook.web.workers.engines.engines_io.find_spec", lambda name: None)
    monkeypatch.setattr(doctor_io, "find_spec", lambda name: None)
    path = tmp_path / "offhook.toml"
    path.write_text(f"[{kind}]\nengine = 'qwen3-{kind}-official'\npython = '{sys.executable}'")
    engine = found(examine(path), {"asr": "hearing", "tts": "speaking"}[kind])
    assert engine.verdict == "ok"
    assert f"started by the first {first}, by {sys.executable}" in engine.detail


@pytest.mark.usefixtures("no_engines")
def test_servers_of_openais_api_are_asked_as_such(tmp_path):
    path = tmp_path / "offhook.toml"

    async def examined(stub):
        path.write_text(
            f"[asr]\nengine = 'openai'\nurl = '{stub.url}'\napi_key = 'k'\n"
            f"[tts]\nengine = 'openai'\nurl = '{stub.url}'\napi_key = 'other'"
        )
        return await asyncio.to_thread(examine, path)

    async def serve():
        async with openai_stub(key="k", models=["ears"]) as stub:
            return stub.url, await examined(stub)

    url, findings = asyncio.run(serve())
    place = url.removeprefix("http://").removesuffix("/v1")
    assert found(findings, "hearing").verdict == "ok"
    assert found(findings, "hearing").detail == f"ears at {place}, by the server at {url}"
    assert found(findings, "speaking").verdict == "fails"
    assert "it wants a valid API key" in found(findings, "speaking").detail
    assert "set [tts] api_key" in found(findings, "speaking").detail


@pytest.mark.usefixtures("no_engines")
def test_a_server_of_openais_api_that_does_not_answer_is_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_io, "WORKER_TIMEOUT_S", 0.2)
    path = tmp_path / "offhook.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        path.write_text(f"[tts]\nengine = 'openai'\nurl = '{url}'")
        speaking = found(examine(path), "speaking")
    assert speaking.verdict == "fails"
    assert f"the server at {url} has not answered in 0.2 s" in speaking.detail


@pytest.mark.usefixtures("no_engines")
def test_a_realtime_model_is_asked_for_a_session(tmp_path):
    port = 0

    async def answer(request):
        if request.query["model"] != "right":
            return web.Response(status=404)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str('{"type": "session.created"}')
        async for _ in socket:
            pass
        return socket

    def ask(model, fallback=""):
        file = tmp_path / "offhook.toml"
        file.write_text(
            f'[agents.desk]\n[agents.far]\nkind = "realtime"\nmodel = "{model}"\n'
            f'base_url = "http://127.0.0.1:{port}/v1"\nfallback = "{fallback}"\n'
        )
        return found(examine(file), "agent far")

    async def serve():
        nonlocal port
        app = web.Application()
        app.router.add_get("/v1/realtime", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            return [
                await asyncio.to_thread(ask, *each)
                for each in (("right",), ("wrong",), ("wrong", "desk"))
            ]
        finally:
            await runner.cleanup()

    right, wrong, replaced = asyncio.run(serve())
    assert (right.verdict, right.detail) == ("ok", f"right, at 127.0.0.1:{port}")
    assert (wrong.verdict, wrong.detail) == ("fails", "status 404: no_model")
    assert replaced.verdict == "note"
    assert "desk answers instead" in replaced.detail


@pytest.mark.usefixtures("no_engines")
def test_who_may_speak_wyoming_is_said(tmp_path):
    path = tmp_path / "offhook.toml"
    assert not [f for f in examine(None) if f.subject == "home assistant"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f"[speech]\nwyoming = {port}\nwyoming_networks = ['10.0.0.0/24']\n")
        assert found(examine(path), "home assistant").verdict == "fails"
    finding = found(examine(path), "home assistant")
    assert finding.verdict == "ok"
    assert finding.detail == f"127.0.0.1:{port} is free, for this machine, 10.0.0.0/24"


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("spoil", "verdict", "says"),
    [
        (None, "ok", "by the first call: zipformer2 transducer, chunks of 320 ms, languages: en"),
        ("tokens.txt", "fails", "there is no"),
        ("encoder.onnx", "fails", "needs encoder*.onnx, decoder*.onnx and joiner*.onnx"),
    ],
)
def test_a_model_of_sherpa_onnx_is_checked(tmp_path, spoil, verdict, says):
    pytest.importorskip("sherpa_onnx")
    folder = tiny_sherpa.zipformer2(tmp_path / "chords-en")
    if spoil:
        (folder / spoil).unlink()
    path = tmp_path / "offhook.toml"
    path.write_text(f"[asr]\nengine = 'sherpa'\nmodel = '{folder}'")
    hearing = found(examine(path), "hearing")
    assert hearing.verdict == verdict
    assert says in hearing.detail


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("settings", "subject", "verdict", "says"),
    [
        ("", "speaking, model", "ok", "english: en, about 0.16 of a core while it speaks"),
        ("", "speaking, voices", "ok", "CC-BY-4.0: alba"),
        ("model = 'french'", "speaking, voices", "ok", "CC0-1.0: estelle"),
        ("model = 'klingon'", "speaking, model", "fails", "no Pocket TTS of that name"),
        ("voice = 'jean'", "speaking, settings", "fails", "has no voice 'jean', only alba"),
        ("language = 'de'", "speaking, settings", "fails", "pocket speaks en, not 'de'"),
    ],
)
def test_pocket_tts_is_described(tmp_path, settings, subject, verdict, says):
    path = tmp_path / "offhook.toml"
    path.write_text(f"[tts]\nengine = 'pocket'\n{settings}")
    finding = found(examine(path), subject)
    assert finding.verdict == verdict
    assert says in finding.detail


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("settings", "subject", "says"),
    [
        (
            "[asr]\nengine = 'pocketsphinx'\nlanguage = 'de'",
            "hearing, settings",
            "asr.language: pocketsphinx hears en",
        ),
        ("[asr]\nlanguage = 'de'", "auto, hearing", "asr.language: pocketsphinx hears en"),
        ("[tts]\nengine = 'flite'\nvoice = 'x'", "speaking, settings", "tts.voice: flite has no"),
        (
            "[tts]\nengine = 'flite'\n[agents.shop]\nvoice = 'x'",
            "agents, settings",
            "agents.shop.voice: flite has no voice 'x'",
        ),
        ("[tts]\nlanguage = 'de'", "speaking", "not asked"),
        ("[asr]\nengine = 'auto'\nlanguage = 'tlh'", "auto, hearing", "(40 locales)"),
    ],
)
def test_an_engine_that_cannot_do_what_is_asked_fails_before_anybody_calls(
    tmp_path, monkeypatch, settings, subject, says
):
    monkeypatch.setattr("offhook.web.workers.engines.machine_io.find_spec", lambda name: None)
    path = tmp_path / "offhook.toml"
    path.write_text(settings)
    finding = found(examine(path), subject)
    assert finding.verdict == ("ok" if says == "not asked" else "fails")
    assert says in finding.detail


@pytest.mark.usefixtures("no_engines")
def test_a_redis_for_saved_calls_is_asked(tmp_path):
    pytest.importorskip("redis")
    path = tmp_path / "offhook.toml"
    path.write_text('[server]\nredis = "redis://:secret@127.0.0.1:1/0"')
    gone = found(examine(path), "saved calls")
    assert gone.verdict == "note"
    assert gone.detail.endswith("calls go on, but end with this server")
    assert "secret" not in gone.detail
    with redis_server(tmp_path) as url:
        path.write_text(f'[server]\nredis = "{url}"')
        assert found(examine(path), "saved calls").verdict == "ok"
    path.unlink()
    assert all(f.subject != "saved calls" for f in examine(None))


def test_the_model_of_an_analysis_is_asked_as_well(tmp_path, monkeypatch):
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    file = tmp_path / "offhook.toml"

    def ask():
        return {f.subject: f for f in doctor_io._agents(load(file))}

    async def examined():
        yes = [phone.says("Yes.")]
        async with phone.model(yes, yes, yes, yes) as own, phone.model() as judge:
            agent = f'kind = "openai"\nmodel = "m"\nbase_url = "{own.url}"\napi_key = "k"\n'
            analysis = f'model = "judge"\nbase_url = "{judge.url}"\napi_key = "k"\n'
            file.write_text(
                f"[agents.shop]\n{agent}[agents.shop.analysis]\n{analysis}"
                f'[agents.desk]\n{agent}[agents.desk.analysis]\nsuccess = "It is sold."\n'
            )
            judge.ill = FAULTS["401"].silent
            refused = await asyncio.to_thread(ask)
            judge.ill, judge.answers = None, [yes]
            return refused, await asyncio.to_thread(ask), judge.requests

    refused, right, requests = asyncio.run(examined())
    assert right["agent shop, analysis"].verdict == "ok"
    assert "judge" in right["agent shop, analysis"].detail
    assert right["agent desk, analysis"].detail == "by its own model, m"
    assert refused["agent shop, analysis"].verdict == "note"
    assert "calls wait for it" in refused["agent shop, analysis"].detail
    assert requests[-1]["model"] == "judge"
