"""`offhook doctor`: what this machine can run, and why not."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from aioice.ice import get_host_addresses

from offhook.media.opus import OpusDecoder, OpusEncoder, libopus
from offhook.pipeline.espeak_io import EspeakSynthesizer
from offhook.pipeline.flite_io import FliteSynthesizer
from offhook.pipeline.recognizer import EngineError
from offhook.pipeline.remote_recognizer_io import RemoteRecognizer
from offhook.pipeline.smart_turn_io import SmartTurn
from offhook.pipeline.vad_io import VadBatch
from offhook.web.config import Config, ConfigError, load
from offhook.web.doctor_gpu_io import described, look
from offhook.web.engines_io import ASR_MODELS, check_recognizer

PINNED = {"aiortc": "1.16.0", "aioice": "0.13.0", "pipecat-ai": "1.14.0"}
"""Versions whose private names are used, or whose behaviour was measured."""
GPU_QUERY_TIMEOUT_SECONDS = 5
WORKER_TIMEOUT_SECONDS = 5


@dataclass(frozen=True)
class Finding:
    subject: str
    verdict: Literal["ok", "note", "fails"]
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.verdict:>5}  {self.subject}: {self.detail}"


def _attempt(subject: str, check: Callable[[], str], without: str | None = None) -> Finding:
    """`without`: what is done when the check fails; None when nothing works without it."""
    try:
        return Finding(subject, "ok", check())
    except (EngineError, OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
        if without is None:
            return Finding(subject, "fails", str(error))
        return Finding(subject, "note", f"{error}; {without}")


def _opus() -> str:
    OpusEncoder(), OpusDecoder()
    return f"{libopus().opus_get_version_string().decode()}, 16 kHz in, 24 kHz out, FEC"


def _flite() -> str:
    FliteSynthesizer().load()
    return "Flite, voice slt"


def _espeak() -> str:
    EspeakSynthesizer().load()
    return "eSpeak NG"


def _pocketsphinx() -> str:
    return f"PocketSphinx {version('pocketsphinx')}, in processes of its own"


def _hearing(config: Config) -> str:
    engines = config.engines
    if not engines.asr_url:
        if engines.asr == "pocketsphinx":
            return _pocketsphinx()
        check_recognizer(engines.asr)
        return f"{engines.asr}, in a worker started by the first call"
    remote = RemoteRecognizer(engines.asr_url, engines.asr_api_key)

    async def ask() -> str:
        try:
            async with asyncio.timeout(WORKER_TIMEOUT_SECONDS):
                await remote.start(engines.stream_options())
        except TimeoutError:
            return f"the worker at {engines.asr_url} is still loading"
        finally:
            await remote.close()
        return f"{remote.name}, by the worker at {engines.asr_url}"

    return asyncio.run(ask())


def _vad() -> str:
    VadBatch()
    return "Silero VAD (ONNX), one batch for all calls"


def _smart_turn() -> str:
    SmartTurn()
    return "Smart Turn v3.2 (ONNX)"


def _port(config: Config) -> str:
    server = config.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((server.host, server.port))
    return f"{server.host}:{server.port} is free"


def _recordings(config: Config) -> str:
    directory = config.recording.directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        raise OSError(f"cannot write to {directory}")
    return f"into {directory}, {shutil.disk_usage(directory).free >> 30} GiB free"


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    found = subprocess.run(
        query, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_SECONDS, check=True
    )
    return found.stdout.strip().replace("\n", "; ")


def _speech_gpu(config: Config) -> Iterator[Finding]:
    """What an embedded Qwen3-ASR has here; nothing when it is not used, or cannot be."""
    engines = config.engines
    if engines.asr != "qwen3-asr" or engines.asr_url or find_spec("torch") is None:
        return
    model = engines.asr_model or ASR_MODELS[engines.asr]
    try:
        machine = look(model)
    except EngineError as error:
        yield Finding("torch", "fails", str(error))
        return
    for subject, detail in described(machine, model):
        yield Finding(subject, "ok", detail)
    if not machine.gpu:
        verdict: Literal["note", "fails"] = "fails" if engines.asr_device == "cuda" else "note"
        slow = "torch sees no GPU: on a CPU a few callers at once are heard"
        yield Finding("speech on the GPU", verdict, slow)


def _versions() -> Iterator[Finding]:
    for package, wanted in PINNED.items():
        found = version(package)
        verdict: Literal["ok", "fails"] = "ok" if found == wanted else "fails"
        yield Finding(package, verdict, found if found == wanted else f"{found}, not {wanted}")


def _network(config: Config) -> Finding:
    addresses = config.webrtc.addresses or get_host_addresses(use_ipv4=True, use_ipv6=True)
    if not addresses:
        return Finding("network", "note", "no address but loopback: only this machine can call")
    turn = any("turn:" in str(s.urls) for s in config.webrtc.ice_servers)
    hint = "" if turn else "; callers behind strict NATs need a TURN server ([webrtc] ice_servers)"
    return Finding("network", "ok", ", ".join(addresses) + hint)


def examine(path: Path | None) -> list[Finding]:
    """Look at everything; the order is that of the way of sound."""
    python = ".".join(map(str, sys.version_info[:3]))
    findings = [
        Finding("machine", "ok", f"{os.cpu_count()} cores, Python {python}"),
        *_versions(),
    ]
    try:
        config = load(path)
        findings.append(Finding("configuration", "ok", str(path or "defaults and environment")))
    except ConfigError as error:
        config = Config()
        findings.append(Finding("configuration", "fails", str(error)))
    findings += [
        _attempt("port", lambda: _port(config), "another server is running there"),
        _network(config),
        _attempt("opus", _opus),
        _attempt("voice activity", _vad),
        _attempt("end of turn", _smart_turn),
        _attempt("hearing", lambda: _hearing(config)),
        _attempt("speaking", _flite, "eSpeak NG speaks instead"),
        _attempt("speaking, fall-back", _espeak),
        _attempt("gpu", _gpu, "the embedded engines need none"),
        *_speech_gpu(config),
    ]
    if config.recording.enabled:
        findings.append(_attempt("recording", lambda: _recordings(config)))
    return findings
