"""Recordings of callers are played to servers on several lines, and wrong words are counted."""

import json
import os
import re
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calls import call_words as words
from benchmarks.speech.lines import voiced
from benchmarks.speech.noises import SPEECH_DBFS
from benchmarks.speech.recordings import resample
from benchmarks.speech.transcript import recognise
from benchmarks.speech.whisper import whisper
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm, dbfs
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer

WHISPER_STUB = """
import wave


class WhisperModel:
    def __init__(self, folder, **how):
        self.folder = folder

    def transcribe(self, sound, language, **how):
        with wave.open(sound) as file:
            text = f" {self.folder} heard {file.getnframes()} samples"
        return [type("Segment", (), {"text": text})], type("Info", (), {"language": language})
"""


def voice(seconds: float) -> Pcm:
    at = np.arange(round(seconds * RATE_IN)) / RATE_IN
    return (3000 * np.sin(2 * np.pi * 300 * at)).astype(np.int16)


def write(path: Path, pcm: Pcm) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_IN)
        file.writeframes(pcm.tobytes())


def test_the_words_of_recordings_are_in_the_readme_or_an_index(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        write(tmp_path / name, voice(0.1))
    (tmp_path / "README.md").write_text("| file | words |\n|---|---|\n| a.wav | ten of clubs |\n")
    (found,) = words.recordings(tmp_path)
    assert (found.name, found.said, len(found.pcm)) == ("a.wav", "ten of clubs", 1600)
    rows = [{"file": "b.wav", "text": "Yes."}, {"file": "a.wav", "text": "No."}]
    (tmp_path / "index.json").write_text(json.dumps(rows))
    assert [one.said for one in words.recordings(tmp_path)] == ["Yes.", "No."]
    assert [one.said for one in words.recordings(tmp_path, "a*")] == ["No."]


def test_noise_is_on_the_line_before_the_caller_speaks_and_as_far_below_as_asked() -> None:
    silent, noisy = (words.on_line(voice(1.0), noise, 15.0) for noise in ("", "fan"))
    lead = round(words.LEAD_S * RATE_OUT)
    said = slice(lead + 1000, lead + RATE_OUT - 1000)
    assert len(silent) == len(noisy) == round((words.LEAD_S + 1 + words.TAIL_S) * RATE_OUT)
    assert not silent[: lead - 1000].any()
    assert dbfs(silent[said]) == pytest.approx(SPEECH_DBFS, abs=0.5)
    assert dbfs(noisy[: lead - 1000]) == pytest.approx(SPEECH_DBFS - 15, abs=1.5)


def test_engines_are_named_in_the_environment_of_the_server() -> None:
    assert words.settings_of("nemotron", "") == {
        "OFFHOOK_ASR_ENGINE": "nemotron",
        "OFFHOOK_ASR_PRELOAD": "true",
    }
    url = {"OFFHOOK_ASR_ENGINE": "openai", "OFFHOOK_ASR_URL": "http://gpu/v1"}
    assert words.settings_of("openai", "http://gpu/v1") == url
    assert words.settings_of("whisper", "http://gpu/v1").items() > url.items()
    assert words.settings_of("small", "") == {"OFFHOOK_ASR_ENGINE": "small"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--judge", "whisper"], "no Whisper: OFFHOOK_WHISPER="),
        (["--engine", "whisper"], "no Whisper: OFFHOOK_WHISPER="),
        (["/nowhere"], "no recordings: name their folder (not /nowhere)"),
        ([".", "--lines", "pcmu,isdn"], "no line is called isdn"),
    ],
)
def test_what_is_lacking_is_said(
    arguments: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OFFHOOK_WHISPER", raising=False)
    with pytest.raises(SystemExit):
        words.main(arguments)
    assert why in capsys.readouterr().err


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Whisper."""
    (tmp_path / "faster_whisper.py").write_text(WHISPER_STUB)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OFFHOOK_WHISPER_PYTHON", sys.executable)
    monkeypatch.setenv("OFFHOOK_WHISPER", "weights")


async def test_whisper_is_asked_by_its_url(stub: None) -> None:
    async with whisper() as url:
        recognizer = OpenAiRecognizer(url)
        await recognizer.start()
        final = await recognise(recognizer, voice(0.5), words.HEARD_AS)
        await recognizer.close()
    assert final.text == "weights heard 8000 samples"


@pytest.mark.slow
async def test_what_the_server_understood_and_what_reached_it(stub: None, tmp_path: Path) -> None:
    text = "What are your opening hours?"
    (pcm,) = (await voiced(text, apart=True)).values()
    write(tmp_path / "hours.wav", resample(pcm, RATE_OUT, RATE_IN))
    (tmp_path / "index.json").write_text(json.dumps([{"file": "hours.wav", "text": text}]))
    how = words.Impairments("fan", 20.0, 0.03)
    said = words.recordings(tmp_path)
    rows = await words.measure(said, words.LINES, how, "pocketsphinx", judge="whisper")
    assert [(row.line, row.recording, row.said) for row in rows] == [
        (line, "hours.wav", text) for line in words.LINES
    ]
    assert rows[0].heard == "what are your opening hours"
    assert all(row.heard for row in rows)
    for row in rows:
        samples = int(re.fullmatch(r"weights heard (\d+) samples", row.judged or "")[1])
        assert samples / RATE_IN > words.LEAD_S + len(said[0].pcm) / RATE_IN + words.TAIL_S
