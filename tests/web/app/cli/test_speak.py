"""`offhook speak`: a text becomes sound, wherever it comes from and wherever it goes."""

import asyncio
import io
import json
import os
import subprocess
import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.app.cli import main as cli
from offhook.web.app.cli import speak_io
from offhook.web.app.cli.speak_io import FileError, Spoken, of_pipe, of_text, speak
from offhook.web.workers.engines.engines_io import at_hand
from tests.pipeline.conversation.speller import LETTER, Speller, spelt
from tests.support import tiny_voices
from tests.support.waiting import HANGS_S
from tests.web.workers.workers import ROOT

TEXT = "Good morning, this is the front desk."


def read_wav(path: Path) -> Pcm:
    with wave.open(str(path)) as file:
        assert file.getparams()[:3] == (1, 2, RATE_OUT)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def read_ogg(path: Path) -> Pcm:
    with av.open(str(path)) as container:
        assert container.streams.audio[0].codec_context.name == "opus"
        resampler = av.AudioResampler("s16", "mono", RATE_OUT)
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def test_a_text_becomes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["speak", TEXT]) == 0
    pcm = read_wav(Path("speech.wav"))
    report = capsys.readouterr()
    voice = at_hand("embedded")
    assert f"speech.wav: {len(pcm) / RATE_OUT:.1f} s by {voice}, the first" in report.err
    assert "real-time factor 0." in report.err
    assert report.out == ""
    (tmp_path / "text").write_text(TEXT)
    assert cli.main(["speak", "--file", "text", "-o", "a.ogg", "--speed", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(read_ogg(Path("a.ogg"))) / RATE_OUT == pytest.approx(result["seconds"], abs=0.1)
    assert result["seconds"] == pytest.approx(len(pcm) / RATE_OUT / 2, rel=0.1)
    assert "".join(word["text"] for word in result["words"]) == TEXT
    ends = [word["end_ms"] for word in result["words"]]
    assert ends == sorted(ends)
    assert 0 < result["first_sound_ms"] <= 1000 * result["seconds"] * result["real_time_factor"]


def test_voices_of_openais_api_are_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["speak", TEXT, "-o", "usual.wav"]) == 0
    assert cli.main(["speak", TEXT, "-o", "alloy.wav", "--voice", "alloy"]) == 0
    # Flite says nothing twice in the same way, to the sample.
    lengths = [len(read_wav(Path(name))) for name in ("usual.wav", "alloy.wav")]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x", "-o", "a.doc"], "a.doc: name it .wav, .mp3, .ogg, .opus, .flac, .aac, or - for WAV"),
        (["x", "-o", "no/such/a.wav"], "no/such/a.wav: No such file or directory"),
        (["x", "-o", "no/such/a.ogg"], "no/such/a.ogg: No such file or directory"),
        (["--file", "nothing"], "nothing: No such file or directory"),
        (["--file", "binary"], "binary is not text in UTF-8"),
        (["…"], "there is nothing to say in this text"),
        ([""], "there is nothing to say in this text"),
        (["x", "--speed", "3"], "speed is 3.0, not 0.5..2.0"),
        (["x", "--voice", "nobody"], "no voice 'nobody'"),
        (["x", "--model", "large"], "has voices and no models, not large"),
        (["x", "-o", "-", "--json"], "--json and -o - both want standard output"),
        (["x", "--url", "unix:nobody"], "no speech worker at unix:nobody"),
    ],
)
def test_what_cannot_be_spoken_says_so_and_leaves_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert cli.main(["speak", *arguments]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert os.listdir() == ["binary"]


def test_qwen3_tts_speaks_a_text_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from tests.pipeline.engines.qwen3_tts import tiny_tts

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    tiny_tts.write(tmp_path / "model")
    model = ("--engine", "qwen3-tts", "--model", "model", "--device", "cpu", "--voices", "voices")
    assert cli.main(["speak", TEXT, *model, "--voice", "eric", "--seed", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["voice"] == "eric"
    assert "".join(word["text"] for word in result["words"]) == TEXT
    pcm = read_wav(Path("speech.wav"))
    assert len(pcm) / RATE_OUT == pytest.approx(result["seconds"])
    assert np.abs(pcm).max() > 100


def test_a_voice_of_piper_speaks_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_voices.piper(tmp_path / "voice")
    assert cli.main(["speak", TEXT, "--engine", "piper", "--model", "voice", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "".join(word["text"] for word in result["words"]) == TEXT
    assert np.abs(read_wav(Path("speech.wav"))).max() > 100


def test_what_is_typed_is_heard_before_the_rest_is_typed() -> None:
    """Through pipes, as by a language model and a player."""
    line = (sys.executable, "-m", "offhook", "speak", "-", "-o", "-")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Good mörning, this".encode()[:7])
        process.stdin.flush()
        process.stdin.write("Good mörning, this".encode()[7:])
        process.stdin.flush()
        first = process.stdout.read(44 + RATE_OUT)  # half a second
        process.stdin.write(b" is the front desk.")
        process.stdin.close()
        rest = process.stdout.read()
        assert process.stderr is not None
        assert b"-: " in process.stderr.read()
    assert process.returncode == 0
    # Players take the length in the header for "until the end".
    assert first[:4] == b"RIFF"
    assert first[4:8] == first[40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(first + rest)) as file:
        assert file.getframerate() == RATE_OUT
    assert len(rest) > RATE_OUT


async def spoken(voice: Speller, text: str, path: Path, live: bool = False) -> Spoken:
    return await speak(voice, VoiceOptions(live=live), of_text(text), str(path), len(text))


async def test_a_book_is_given_to_the_engine_as_it_is_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speak_io, "READ_CHARS", 64)
    monkeypatch.setattr(speak_io, "AHEAD_CHARS", 100)
    voice = Speller()
    voice.hold_after = 3
    text = "once upon a time " * 40
    speaking = asyncio.create_task(spoken(voice, text, tmp_path / "a.wav"))
    async with asyncio.timeout(HANGS_S):
        while not (voice.replies and voice.replies[0].written):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(voice.replies[0].written) < 300
    voice.may_speak.set()
    result = await speaking
    assert spelt(read_wav(tmp_path / "a.wav")) == "onceuponatime" * 40
    assert voice.replies[0].written == text
    assert result.words[1] == {"text": "upon ", "end_ms": 8 * LETTER * 1000 // RATE_OUT}
    assert (result.engine, result.voice) == ("speller", "capital")


async def test_what_fails_midway_leaves_what_was_spoken(tmp_path: Path) -> None:
    class Mute(Exception):
        pass

    voice = Speller()
    voice.hold_after = 3
    speaking = asyncio.create_task(spoken(voice, "one two", tmp_path / "a.wav"))
    while voice.may_speak.is_set():
        await asyncio.sleep(0.01)
    voice.fault = Mute()
    voice.may_speak.set()
    with pytest.raises(Mute):
        await speaking
    assert spelt(read_wav(tmp_path / "a.wav")) == "one"
    assert voice.replies[0].cancelled


async def test_text_from_a_pipe_comes_as_it_comes_and_whole() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as source:
        texts = of_pipe(source)
        os.write(into, "né".encode()[:-1])
        assert await anext(texts) == "n"
        os.write(into, "é!".encode()[1:])
        assert await anext(texts) == "é!"
        os.close(into)
        assert [text async for text in texts] in ([], [""])


async def test_only_a_file_that_cannot_be_made_is_an_error_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "folder.wav").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        await spoken(Speller(), "a", tmp_path / "folder.wav")


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.aac", "a.opus"])
async def test_the_name_says_the_format(tmp_path: Path, name: str) -> None:
    output = str(tmp_path / name)
    spoken = await speak(Speller(), VoiceOptions(), of_text("abcdefgh " * 20), output)
    with av.open(output, "r") as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        rate = container.streams.audio[0].rate
    assert samples / rate == pytest.approx(spoken.seconds, abs=0.1)
