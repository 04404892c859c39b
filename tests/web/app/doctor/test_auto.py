"""What the doctor says of `auto`, and of a server that is using it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engine_spec import TORCH_PACKAGES
from offhook.web.app.doctor import auto_io
from offhook.web.app.doctor.auto_io import examine_choices
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.server import Server
from offhook.web.workers.engines.choice import GIB, Machine

MODEL = "nvidia/nemotron-speech-streaming-en-0.6b"
LAPTOP = Machine(4, 8 * GIB, Instructions.AVX, packages=frozenset(TORCH_PACKAGES))
STATE = (
    b'{"status": "ok", "engines": {"asr": '
    b'{"state": "failed", "uses": "pocketsphinx", "engine": "nemotron"}}}'
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(auto_io, "look", lambda: LAPTOP)


@pytest.fixture
def port() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(STATE)

        def log_message(self, *of: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.usefixtures("machine")
def test_the_choice_its_reason_and_its_price_are_told() -> None:
    config = Config(asr=Asr(engine="auto"), tts=Tts(engine="auto"), server=Server(port=1))
    found = {f.subject: f for f in examine_choices(config)}
    assert found["8-bit products"].detail.startswith("on this CPU by AVX without VNNI")
    hearing = found["auto, hearing"]
    assert hearing.verdict == "ok"
    assert hearing.detail.startswith(f"nemotron ({MODEL}): this machine has 4 cores")
    assert "2.5 GB to download" in hearing.detail
    assert "NVIDIA Open Model License" in hearing.detail
    assert found["auto, speaking"].subject


@pytest.mark.usefixtures("machine")
def test_a_full_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_io, "free_bytes", lambda model: 1_000_000)
    config = Config(asr=Asr(engine="auto"), server=Server(port=1))
    [hearing] = [f for f in examine_choices(config) if f.subject == "auto, hearing"]
    assert hearing.verdict == "note"
    assert "1 MB free" in hearing.detail


@pytest.mark.usefixtures("machine")
def test_a_server_that_runs_says_what_it_does(port: int) -> None:
    config = Config(asr=Asr(engine="auto"), server=Server(port=port))
    [now] = [f for f in examine_choices(config) if f.subject == "auto, hearing, now"]
    assert now.verdict == "note"
    assert "pocketsphinx in use, nemotron is failed" in now.detail
