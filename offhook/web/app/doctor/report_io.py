"""`offhook doctor`: what this machine can run, and why not."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from aioice.ice import get_host_addresses

from offhook.media import native
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, libopus
from offhook.media.recording_io import check_writable
from offhook.pipeline.conversation.agents.kinds.openai import OPENAI
from offhook.pipeline.speech.engine_spec import KINDS, EngineSpec, Kind
from offhook.pipeline.speech.engines import spec_of, stand_in
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN, open_turn_model
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.processes.child_io import oom_kills
from offhook.signaling.ice.port_io import RECEIVE_BUFFER_BYTES
from offhook.web.app.doctor.auto_io import examine_choices
from offhook.web.app.doctor.carriers import examine_carriers
from offhook.web.app.doctor.finding import Finding, Outcome
from offhook.web.app.doctor.gpu_io import SUBJECTS as GPU_SUBJECTS
from offhook.web.app.doctor.gpu_io import described, look
from offhook.web.app.doctor.hours import examine_hours
from offhook.web.app.doctor.knowledge_io import examine_knowledge
from offhook.web.app.doctor.mcp_io import examine_mcp
from offhook.web.app.doctor.server_io import examine_calls
from offhook.web.app.doctor.sip_io import examine_phones
from offhook.web.config.config import Agent, Config, ConfigError, file_of, load
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.language_models.chat_model import ChatModel
from offhook.web.config.plugins import check_agents
from offhook.web.config.records import Records
from offhook.web.edge.placing.requests import fault_of_doors, operator_access
from offhook.web.realtime.protocol.frozen import fault_of_frozen
from offhook.web.tools.agent_tools_io import AgentTools
from offhook.web.workers.engines.abilities_io import fault_on_phones, faults_of, faults_of_agents
from offhook.web.workers.engines.engines_io import check_engine, own_python
from offhook.web.workers.engines.machine_io import keep_offline
from offhook.web.workers.engines.remote_engines_io import Client, client_of, started
from offhook.web.workers.wyoming.door_io import check_package

PINNED = {"aiortc": "1.16.0", "aioice": "0.13.0", "pipecat-ai": "1.14.0"}
"""Versions whose private API is used or whose behaviour was measured."""
GPU_QUERY_TIMEOUT_S = 5
WORKER_TIMEOUT_S = 5
REDIS_S = 2
MAX_WORDS = 200
"""Characters of an error of Redis's that are shown."""
SUBJECTS: dict[Kind, str] = {"asr": "hearing", "tts": "speaking"}
FIRST: dict[Kind, str] = {"asr": "call", "tts": "reply"}
"""What starts a local worker."""
SILENCE = np.zeros(512, np.int16)
"""One input window of the VAD models."""


def _attempt(subject: str, check: Callable[[], str], without: str | None = None) -> Finding:
    """Runs a check; `without` describes the fallback if it fails, None if there is none."""
    try:
        return Finding(subject, "ok", check())
    except (EngineError, OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
        words = _words(error)
        if without is None:
            return Finding(subject, "fails", words)
        return Finding(subject, "note", f"{words}; {without}")


def _words(error: Exception) -> str:
    """Returns the message without its errno."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no {error.filename} here"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def _opus() -> str:
    OpusEncoder(), OpusDecoder()
    return f"{libopus().opus_get_version_string().decode()}, 16 kHz in, 24 kHz out, FEC"


def _engine(config: Config, kind: Kind) -> Iterator[Finding]:
    """Yields findings on the engine of [asr] or [tts]."""
    section: Asr | Tts = config.asr if kind == "asr" else config.tts
    subject = SUBJECTS[kind]
    if section.url:
        yield _attempt(subject, lambda: asyncio.run(_ask(client_of(section), section)))
        return
    spec = stand_in(kind) if section.automatic else spec_of(kind, section.engine)
    checks = list(spec.checked(section.model or spec.model, section.language))
    if not spec.embedded:
        own = [check.ask for check in checks if not check.about]
        yield _attempt(subject, lambda: ": ".join((_in_worker(spec, section), *(a() for a in own))))
    for check in checks:
        if check.about or spec.embedded:
            yield _attempt(subject + check.about, check.ask, check.without)


def _beyond_the_engines(config: Config) -> Iterator[Finding]:
    """Yields what is configured that an engine cannot do."""
    found = [(kind, fault) for kind in KINDS for fault in faults_of(config, kind)]
    for kind, fault in found:
        yield Finding(f"{SUBJECTS[kind]}, settings", "fails", fault)
    for fault in () if found else faults_of_agents(config):
        yield Finding("agents, settings", "fails", fault)
    if not config.asr.automatic and (fault := fault_on_phones(config, config.asr.engine)):
        yield Finding("hearing, on phones", "note", fault)


def _in_worker(spec: EngineSpec, section: Asr | Tts) -> str:
    """Describes an engine that a local worker will run. Raises EngineError."""
    line = f"{spec.name}, in a worker started by the first {FIRST[spec.kind]}"
    if python := own_python(spec.kind, spec.name, section.python):
        return f"{line}, by {python}"
    check_engine(spec.kind, spec.name)
    return line


async def _ask(remote: Client, settings: Asr | Tts) -> str:
    """Describes what a remote worker or server runs. Raises EngineError."""
    of_ours = isinstance(remote, RemoteRecognizer | RemoteSynthesizer)
    where = f"the {'worker' if of_ours else 'server'} at {', '.join(settings.urls)}"
    try:
        async with asyncio.timeout(WORKER_TIMEOUT_S):
            await started(remote, settings)
    except TimeoutError as error:
        if of_ours:
            return f"{where} is still loading"
        silent = f"{where} has not answered in {WORKER_TIMEOUT_S} s"
        raise EngineError(f"{silent}: it is loading or unreachable") from error
    finally:
        await remote.close()
    return f"{remote.name}, by {where}"


def _functions(config: Config) -> Iterator[Finding]:
    """Yields what can be said of the functions that are tools."""
    for subject, signature in AgentTools().imports(config).items():
        yield _attempt(subject, signature)


def _agents(config: Config) -> Iterator[Finding]:
    """Asks each agent whether it can answer, as its kind does: a language model for a token, a
    speech-to-speech model for a session."""
    try:
        check_agents(config)
    except ConfigError as error:
        yield Finding("agents", "fails", str(error))
        return
    for where, agent in config.named_agents().items():
        subject = where.replace("agents.", "agent ", 1)
        if agent.of_kind.examines:
            without = f"{agent.fallback} answers instead" if agent.fallback else None
            yield _attempt(subject, partial(_examine, where, agent), without)
        if agent.analysis is not None:
            model = agent.analysis.model_beside(agent)
            if (model.model, model.base_url) == (agent.model, agent.base_url):
                yield Finding(f"{subject}, analysis", "ok", f"by its own model, {model.model}")
                continue
            ask = partial(_examine_model, f"{where}.analysis", model)
            yield _attempt(f"{subject}, analysis", ask, "calls wait for it, for three days")


def _examine(where: str, agent: Agent) -> str:
    """Raises EngineError, OSError."""
    return asyncio.run(agent.of_kind.examine(where, agent, agent.own_settings))


def _examine_model(where: str, model: ChatModel) -> str:
    """Raises EngineError."""
    return asyncio.run(OPENAI.examine(where, model, None))


def _vad() -> str:
    VadBatch().probabilities(SILENCE)
    return "Silero VAD, one batch for all calls"


def _turn_model(choice: str) -> str:
    """Raises EngineError, OSError."""
    if choice == SMART_TURN:
        return _smart_turn()
    model = open_turn_model(choice)
    if model is None:
        return "by the words and silence, without a model"
    asyncio.run(model.close())
    return f"{model.name}, asked about {model.window_s:g} s of audio"


def _smart_turn() -> str:
    SmartTurn().judge(SILENCE)
    return "Smart Turn v3.2 (ONNX)"


def _port(config: Config) -> str:
    server = config.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((server.host, server.port))
    return f"{server.host}:{server.port} is free"


def _wyoming(config: Config) -> str:
    check_package()
    speech = config.speech
    host, port = speech.wyoming_address
    with socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ):
        pass
    admitted = ", ".join(("this machine", *speech.wyoming_networks))
    return f"{host}:{port} is free, for {admitted}"


def _redis(url: str) -> str:
    """Raises OSError, ValueError or ImportError."""
    from redis import Redis, RedisError

    try:
        with Redis.from_url(url, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S) as redis:
            if redis.ping() is not True:
                raise OSError("what is there answers, but is no Redis")
    except RedisError as error:
        raise OSError(f"Redis: {str(error)[:MAX_WORDS]}") from error
    return "Redis answers: calls continue at another server"


def _recordings(config: Config) -> str:
    directory = config.recording.directory
    try:
        keys = config.recording.keyring()
    except ValueError as error:
        raise OSError(str(error)) from error
    try:
        check_writable(directory)
    except OSError as error:
        hint = "let the user who runs the server write there, or set [recording] directory"
        raise OSError(f"cannot write to {directory}: {_words(error)}: {hint}") from error
    how = "not encrypted" if keys is None else "encrypted"
    return f"into {directory}, {how}, {shutil.disk_usage(directory).free >> 30} GiB free"


def _kept_calls(records: Records) -> str:
    from offhook.web.records.errors import StoreError
    from offhook.web.records.store import CallStore

    hint = "see [records] url"
    path = Path(records.url.removeprefix("sqlite:///"))
    if records.url.startswith("sqlite:///") and not path.exists():
        if not os.access(path.absolute().parent, os.W_OK):
            raise OSError(f"{path} cannot be written: {hint}")
        return f"into {path}, none so far"
    try:
        store = CallStore(records.url)
        store.prepare()
        number, size = store.size()
        place = store.place
        store.close()
    except (OSError, StoreError) as error:
        raise OSError(f"{_words(error)}: {hint}") from error
    return f"{place}, {number} so far, {size / 1e6:.0f} MB"


def _bucket(config: Config) -> str:
    """Raises OSError, ValueError."""
    from offhook.web.records.bucket.client_io import Bucket

    bucket = Bucket(config.s3.settings)
    bucket.check()
    how = "by signed links" if config.s3.links else "through this server"
    return f"{bucket.place}: files can be written, read in part and deleted; played {how}"


def _records(path: Path) -> str:
    place = path if path.exists() else path.absolute().parent
    if not place.exists():
        raise OSError(f"there is no folder {place}: create it, or set [log] calls to another file")
    if not os.access(place, os.W_OK):
        hint = "let the user who runs the server write there, or set [log] calls to another file"
        raise OSError(f"cannot write to {place}: {hint}")
    return f"into {path}"


def _gpu() -> str:
    asked = "name,memory.total,persistence_mode"
    query = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    found = subprocess.run(
        query, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_S, check=True
    )
    return "; ".join(map(_describe_gpu, found.stdout.strip().splitlines()))


def _describe_gpu(line: str) -> str:
    """Describes one GPU from a line of nvidia-smi."""
    about, _, mode = line.rpartition(", ")
    if mode == "Disabled":
        return f"{about}, persistence off: a worker that is first to use it waits 1 to 3 s longer"
    return f"{about}, persistence on" if mode == "Enabled" else about


def _speech_gpu(config: Config) -> Iterator[Finding]:
    """Yields findings on the model engines that this machine is configured to run."""
    if find_spec("torch") is None:
        return
    told: set[str] = set()
    for kind in KINDS:
        section: Asr | Tts = config.asr if kind == "asr" else config.tts
        if section.on_gpu and not section.url:
            found = list(_on_gpu(spec_of(kind, section.engine), section))
            yield from (f for f in found if f.subject != "torch" or not told)
            told |= {f.subject for f in found}


def _on_gpu(spec: EngineSpec, section: Asr | Tts) -> Iterator[Finding]:
    assert spec.on_gpu is not None
    model = section.model or spec.model
    try:
        machine = look(spec.kind, spec.name, model)
    except EngineError as error:
        yield Finding("torch", "fails", str(error))
        return
    for about, detail in described(machine, spec.kind, spec.on_gpu, model):
        yield Finding(about, "ok", detail)
    if not machine.gpu:
        verdict: Outcome = "fails" if section.torch_device == "cuda" else "note"
        slow = f"torch sees no GPU: {spec.on_gpu.slow}"
        yield Finding(GPU_SUBJECTS[spec.kind], verdict, slow)


def _versions() -> Iterator[Finding]:
    for package, wanted in PINNED.items():
        found = version(package)
        verdict: Outcome = "ok" if found == wanted else "fails"
        yield Finding(package, verdict, found if found == wanted else f"{found}, not {wanted}")


def _memory() -> Iterator[Finding]:
    if killed := oom_kills():
        words = "for lack of it since it started: the log of the server says which were its own"
        yield Finding("memory", "note", f"the system has killed {killed} processes {words}")


def _network(config: Config) -> Finding:
    addresses = config.webrtc.addresses or get_host_addresses(use_ipv4=True, use_ipv6=True)
    if not addresses:
        return Finding("network", "note", "no address but loopback: only this machine can call")
    turn = any("turn:" in str(s.urls) for s in config.webrtc.ice_servers)
    hint = "" if turn else "; callers behind strict NATs need a TURN server ([webrtc] ice_servers)"
    where = ", ".join(addresses)
    if port := config.webrtc.port:
        offered = config.webrtc.public_address or where
        where = f"{offered}, port {port} (UDP, and TCP behind firewalls)"
        granted = _receive_buffer_bytes()
        if granted is not None and granted < RECEIVE_BUFFER_BYTES:
            where += f"; small receive buffer: sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}"
            return Finding("network", "note", where + hint)
    return Finding("network", "ok", where + hint)


def _receive_buffer_bytes() -> int | None:
    """The largest receive buffer that the kernel grants; None if it does not say."""
    try:
        return int(Path("/proc/sys/net/core/rmem_max").read_text())
    except OSError:
        return None


def examine(path: Path | None) -> list[Finding]:
    """Runs all checks, in the order of the audio path."""
    python = ".".join(map(str, sys.version_info[:3]))
    findings = [
        Finding("machine", "ok", f"{os.cpu_count()} cores, Python {python}"),
        *_versions(),
        *_memory(),
    ]
    try:
        config = load(path)
        fault = fault_of_frozen(config.realtime.frozen)
        words = fault or str(file_of(path) or "defaults and environment")
        findings.append(Finding("configuration", "fails" if fault else "ok", words))
    except ConfigError as error:
        config = Config()
        findings.append(Finding("configuration", "fails", str(error)))
    keep_offline(config)
    fault = fault_of_doors(config)
    findings += [
        Finding("operator", "fails" if fault else "ok", fault or operator_access(config)),
        _attempt("port", lambda: _port(config), "another server is running there"),
        *examine_calls(config),
        _network(config),
        Finding("packets", "ok" if native.used else "note", native.description()),
        _attempt("opus", _opus),
        _attempt("voice activity", _vad),
        _attempt("end of turn", lambda: _turn_model(config.turn.model)),
        *(finding for kind in KINDS for finding in _engine(config, kind)),
        *_beyond_the_engines(config),
        *examine_choices(config),
        *_agents(config),
        *examine_hours(config),
        *_functions(config),
        *examine_mcp(config),
        *examine_knowledge(config),
        _attempt("gpu", _gpu, "the embedded engines need none"),
        *_speech_gpu(config),
    ]
    if config.speech.wyoming:
        findings.append(_attempt("home assistant", lambda: _wyoming(config)))
    if config.server.redis:
        check = partial(_redis, config.server.redis)
        findings.append(_attempt("saved calls", check, "calls go on, but end with this server"))
    if config.records_calls:
        findings.append(_attempt("recording", lambda: _recordings(config)))
    if config.s3.bucket:
        findings.append(_attempt("bucket", partial(_bucket, config), "recordings wait on the disk"))
    if config.records.url:
        check = partial(_kept_calls, config.records)
        findings.append(
            _attempt("kept calls", check, "calls go on, and what they do waits in [records] spool")
        )
    if config.log.calls is not None:
        findings.append(_attempt("records of calls", partial(_records, config.log.calls)))
    if config.sip is not None:
        findings += examine_phones(config.sip, config.server.max_calls)
    findings += examine_carriers(config.carriers, config.server.host)
    return findings
