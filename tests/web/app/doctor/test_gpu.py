"""What the doctor says of the GPU that recognises speech."""

import sys
from importlib.util import find_spec

import pytest

from offhook.pipeline.engines.qwen3_asr.spec import QWEN3_ASR, SETTINGS
from offhook.pipeline.engines.shared.gpu_io import Machine
from offhook.pipeline.speech.engine_spec import OnGpu
from offhook.pipeline.speech.errors import EngineError
from offhook.web.app.doctor import gpu_io as doctor_gpu_io
from offhook.web.app.doctor import report_io as doctor_io
from offhook.web.app.doctor.gpu_io import described
from offhook.web.config.config import Config

H200 = Machine("2.11.0", "3.6.0", "", "NVIDIA H200", 100 << 30, 140 << 30, 800, near_cpus=48)


def described_here(machine):
    assert isinstance(QWEN3_ASR.on_gpu, OnGpu)
    return dict(described(machine, "asr", QWEN3_ASR.on_gpu, "m"))


def config(asr="qwen3-asr", tts="embedded", **engines):
    """`engines`: asr_KEY and tts_KEY of the configuration."""
    sections = {"asr": {"engine": asr}, "tts": {"engine": tts}}
    for name, value in engines.items():
        section, _, key = name.partition("_")
        sections[section][key] = value
    return Config.model_validate(sections)


def findings(monkeypatch, machine, installed=True, **engines):
    """Of a machine; `installed`: torch is."""

    def look(kind, engine, model):
        if isinstance(machine, Exception):
            raise machine
        return machine

    monkeypatch.setattr(doctor_io, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(doctor_io, "look", look)
    return {f.subject: f for f in doctor_io._speech_gpu(config(**engines))}


def test_a_gpu_is_described(monkeypatch):
    found = findings(monkeypatch, H200)
    assert all(f.verdict == "ok" for f in found.values())
    assert found["torch"].detail == "2.11.0, Triton 3.6.0, flash-attn none, nor needed"
    assert found["speech on the GPU"].detail == (
        "NVIDIA H200, 100.0 of 140.0 GiB free: 800 streams fit beside Qwen/Qwen3-ASR-0.6B"
    )
    assert "48 CPUs" in found["CPU affinity"].detail
    assert {s.name for s in SETTINGS} <= set(found)


def test_streams_of_nemotron_are_counted_without_the_settings_of_qwen3(monkeypatch):
    found = findings(monkeypatch, H200, asr="nemotron")
    assert set(found) == {"torch", "speech on the GPU", "CPU affinity"}
    assert found["speech on the GPU"].detail.endswith(
        "800 streams fit beside nvidia/nemotron-speech-streaming-en-0.6b"
    )
    cpu = findings(monkeypatch, Machine("2.13.0+cpu", "3.9.0"), asr="nemotron")
    assert cpu["speech on the GPU"].verdict == "note"


def test_voices_on_a_gpu_are_counted_beside_their_model(monkeypatch):
    found = findings(monkeypatch, H200, asr="pocketsphinx", tts="qwen3-tts")
    assert set(found) == {"torch", "voices on the GPU"}
    assert found["voices on the GPU"].detail == (
        "NVIDIA H200, 100.0 of 140.0 GiB free: 800 voices at once fit beside "
        "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    )
    both = findings(monkeypatch, H200, tts="qwen3-tts")
    assert {"torch", "speech on the GPU", "voices on the GPU"} <= set(both)
    cpu = Machine("2.13.0+cpu", "3.9.0")
    slow = findings(monkeypatch, cpu, asr="pocketsphinx", tts="qwen3-tts", tts_device="cuda")
    assert slow["voices on the GPU"].verdict == "fails"
    assert not findings(
        monkeypatch, AssertionError("asked"), asr="pocketsphinx", tts="qwen3-tts", tts_url="unix:a"
    )


def test_how_many_are_followed_is_said_to_be_reckoned():
    machine = Machine("2.11.0", gpu="NVIDIA L4", streams=258, followed=43)
    assert described_here(machine)["speech on the GPU"].endswith(
        "258 streams fit beside m; 43 should be followed in real time (reckoned; a worker "
        "measures it)"
    )


def test_a_gpu_that_is_full_says_so():
    full = Machine("2.11.0", gpu="NVIDIA H200", lacks="0.5 GiB are free, 1.3 GiB are needed")
    lines = described_here(full)
    assert "1.3 GiB are needed" in lines["speech on the GPU"]
    assert "no effect" in lines["CPU affinity"]


@pytest.mark.parametrize(("device", "verdict"), [("auto", "note"), ("cuda", "fails")])
def test_without_a_gpu_the_cpu_is_used_unless_the_gpu_was_asked_for(monkeypatch, device, verdict):
    found = findings(monkeypatch, Machine("2.13.0+cpu", "3.9.0"), asr_device=device)
    assert set(found) == {"torch", "speech on the GPU"}
    assert found["speech on the GPU"].verdict == verdict


def test_without_torch_or_with_another_engine_nothing_is_asked(monkeypatch):
    asked = AssertionError("asked")
    assert not findings(monkeypatch, asked, installed=False)
    assert not findings(monkeypatch, asked, asr="pocketsphinx")
    assert not findings(monkeypatch, asked, asr_url="http://gpu:7870")


def test_a_torch_that_breaks_fails(monkeypatch):
    found = findings(monkeypatch, EngineError("torch cannot be asked: ImportError: libcudart"))
    assert found["torch"].verdict == "fails"
    assert "libcudart" in found["torch"].detail


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_what_the_child_leaves_on_standard_error_is_told():
    with pytest.raises(EngineError, match="No module named 'torch'"):
        doctor_gpu_io.look("asr", "qwen3-asr", "m")


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_the_child_sees_what_torch_sees():
    import torch

    machine = doctor_gpu_io.look("asr", "qwen3-asr", "Qwen/Qwen3-ASR-0.6B")
    assert machine.torch == torch.__version__
    assert bool(machine.gpu) == torch.cuda.is_available()


@pytest.mark.skipif(find_spec("torch") is None, reason="else it is not there to be imported")
def test_the_doctor_itself_imports_no_torch():
    import subprocess

    asks = "import sys, offhook.web.app.doctor.report_io; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asks], check=False).returncode == 0
