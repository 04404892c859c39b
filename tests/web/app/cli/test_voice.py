"""`offhook voice`: a voice is cloned from a file, and a worker of the same model speaks with it."""

import asyncio
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.synthesizer import Speech, VoiceOptions
from offhook.web.app.cli import main as cli
from offhook.web.app.cli.voice_io import read_recording
from tests.pipeline.engines.qwen3_tts.test_voices import WORDS, speech
from tests.support.waiting import HANGS_S

RATE = 32_000


def said(seconds: float) -> Pcm:
    return speech(4, RATE)[: int(seconds * RATE)] if seconds < 4 else speech(seconds, RATE)


def write_wav(path: Path, seconds: float, channels: int = 1) -> Path:
    pcm = np.repeat(said(seconds)[:, None], channels, axis=1)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, RATE, 0, "NONE", ""))
        file.writeframes(pcm.astype("<i2").tobytes())
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_wav(tmp_path / "me.wav", 4)
    return tmp_path


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    """A tiny random Base model."""
    pytest.importorskip("torch")
    from tests.pipeline.engines.qwen3_tts import tiny_cloning

    model = folder / "model"
    model.mkdir()
    return tiny_cloning.write(model)


def listed(capsys: pytest.CaptureFixture[str], *model: str) -> list[list[str]]:
    capsys.readouterr()
    assert cli.main(["voice", "list", *model]) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def heard(model: Path, voice: str) -> Pcm:
    """By the worker's engine."""
    from offhook.pipeline.engines.qwen3_tts.synthesizer_io import Qwen3Synthesizer

    async def say() -> list[Speech]:
        synthesizer = Qwen3Synthesizer(TtsModels(str(model), "cpu", "voices"))
        await synthesizer.start()
        assert voice in synthesizer.voices()
        stream = synthesizer.open(VoiceOptions(voice=voice, seed=3, live=False))
        stream.write("the cat sat on the mat")
        stream.end()
        async with asyncio.timeout(HANGS_S):
            pieces = [piece async for piece in stream]
        await synthesizer.close()
        return pieces

    return np.concatenate([piece.pcm for piece in asyncio.run(say())])


def test_a_voice_is_cloned_spoken_with_and_removed(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", "model", "--voices", "voices")
    assert listed(capsys, *model) == []
    known = ("--consent", "--text", WORDS, "--language", "en")
    assert cli.main(["voice", "add", "Anna", "me.wav", *known, *model]) == 0
    assert "Anna: speak with a worker of the model model" in capsys.readouterr().out
    assert cli.main(["voice", "add", "bare", "me.wav", "--consent", *model]) == 0
    rows = listed(capsys, *model)
    assert [row[:3] for row in rows] == [["Anna", "clone", "en"], ["bare", "clone", "-"]]
    assert rows[0][3].startswith("20")
    with_words = heard(checkpoint, "Anna")
    assert np.abs(with_words).max() > 100
    assert not np.array_equal(with_words, heard(checkpoint, "bare"))
    assert cli.main(["voice", "add", "anna", "me.wav", "--consent", *model]) == 1
    assert "there is a voice anna already" in capsys.readouterr().err
    assert cli.main(["voice", "remove", "ANNA", *model]) == 0
    assert [row[0] for row in listed(capsys, *model)] == ["bare"]
    assert cli.main(["voice", "remove", "Anna", *model]) == 1
    assert "there is no voice Anna of model" in capsys.readouterr().err
    assert len(list(Path("voices").rglob("*.npz"))) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["anna", "me.wav"], "ask the speaker of the recording, and give --consent"),
        (["anna", "nothing.wav", "--consent"], "nothing.wav: there is no such file"),
        (["anna", "text", "--consent"], "text: no audio or video that can be read"),
        (["anna", "empty.wav", "--consent"], "empty.wav: there is no sound in it"),
        (["anna", "me.wav", "--consent", "--model", "./none"], "there is no folder ./none"),
    ],
)
def test_what_cannot_be_cloned_says_so_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (folder / "text").write_text("no sound")
    write_wav(folder / "empty.wav", 0)
    if "--model" in arguments:
        pytest.importorskip("torch")
    assert cli.main(["voice", "add", *arguments, "--voices", "voices"]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not (folder / "voices").exists()


def test_a_name_or_a_recording_that_will_not_do(
    checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wav(folder / "short.wav", 1)
    model = ("--consent", "--model", "model", "--voices", "voices")
    for name, file, says in (
        ("../anna", "me.wav", "is no name"),
        ("anna", "short.wav", "3 to 30 s of one person speaking are needed"),
    ):
        assert cli.main(["voice", "add", name, file, *model]) == 1
        assert says in capsys.readouterr().err
    assert cli.main(["voice", "remove", "../anna", *model[1:]]) == 1
    assert "is no name" in capsys.readouterr().err
    assert not (folder / "voices").exists()


def test_a_recording_is_read_as_it_is(folder: Path) -> None:
    pcm, rate = read_recording(write_wav(folder / "two.wav", 3, channels=2))
    assert rate == RATE
    assert np.abs(pcm.astype(int) - said(3)).max() <= 1
    long = write_wav(folder / "long.wav", 90)
    pcm, rate = read_recording(long)
    assert 60 * RATE < len(pcm) < 61 * RATE
    with av.open("film.mkv", "w") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(said(3)[None], "s16", "mono")
        frame.sample_rate = RATE
        container.mux(stream.encode(frame))
    assert np.array_equal(read_recording(Path("film.mkv"))[0], said(3))


def test_voices_of_pocket_tts_are_listed_with_licences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["voice", "list", "--engine", "pocket", "--model", "french"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split("\t") == ["estelle", "speaker", "fr", "CC0-1.0"]
    assert any(line.split("\t")[0::3] == ["alba", "CC-BY-4.0"] for line in rest)
    assert not any(line.startswith(("jean", "cosette")) for line in rest)
    assert cli.main(["voice", "list", "--engine", "pocket", "--model", "klingon"]) == 1
    assert "no Pocket TTS of that name" in capsys.readouterr().err
