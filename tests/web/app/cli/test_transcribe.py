"""Files to text: what is said in them, whatever they are, and a clear word when they are not."""

import io
import json
import re
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.web.app.cli import main as cli
from offhook.web.app.cli import transcribe_io
from tests.support.waiting import HANGS_S
from tests.web.speech_api.recordings import spoken, write_video, write_wav
from tests.web.workers.workers import ROOT


@pytest.fixture(scope="module")
def phrase() -> Pcm:
    return np.pad(spoken("tell me about your opening hours"), RATE_IN // 2)


def test_audio_and_video_are_written_down(
    tmp_path: Path, phrase: Pcm, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        write_wav(tmp_path / "stereo.wav", phrase, channels=2),
        write_video(tmp_path / "film.mp4", phrase),
        tmp_path / "not there.wav",
    ]
    assert cli.main(["transcribe", "--json", *map(str, files)]) == 1
    output = capsys.readouterr()
    sound, film = (json.loads(line) for line in output.out.splitlines())
    assert output.err == f"offhook: {files[2]}: there is no such file\n"
    assert sound["text"]
    assert set(film["text"].split()) & set(sound["text"].split())
    for result, file in zip((sound, film), files, strict=False):
        assert (result["file"], result["engine"]) == (str(file), "pocketsphinx")
        assert result["duration"] == pytest.approx(len(phrase) / RATE_IN, abs=0.2)
        (segment,) = result["segments"]
        times = [time for word in segment["words"] for time in (word["start_ms"], word["end_ms"])]
        assert times == sorted(times)
        assert times[-1] <= result["duration"] * 1000


def test_words_come_a_line_each_with_their_times(
    tmp_path: Path, phrase: Pcm, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wav(tmp_path / "a.wav", phrase)
    assert cli.main(["transcribe", str(path)]) == 0
    text = capsys.readouterr().out
    assert cli.main(["transcribe", "--words", str(path)]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert " ".join(word for _, _, word in lines) == text.strip()
    times = [float(time) for begin, end, _ in lines for time in (begin, end)]
    assert times == sorted(times)
    assert 0 < times[-1] <= len(phrase) / RATE_IN


@pytest.mark.slow
def test_captions_are_written_and_standard_input_is_read(
    tmp_path: Path,
    phrase: Pcm,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    film = write_video(tmp_path / "film.mp4", phrase)
    with film.open("rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        assert cli.main(["transcribe", "-"]) == 0
    text = capsys.readouterr().out.strip()
    assert "hours" in text
    assert cli.main(["transcribe", "--format", "srt", str(film)]) == 0
    number, times, words = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", times)
    assert (number, words) == ("1", text)
    assert cli.main(["transcribe", "--format", "vtt", str(film)]) == 0
    assert capsys.readouterr().out.startswith("WEBVTT\n\n00:00:0")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"no sound")))
    assert cli.main(["transcribe", "-"]) == 1
    assert "standard input: no audio or video" in capsys.readouterr().err
    assert cli.main(["transcribe", "--format", "srt", str(film), str(film)]) == 1
    assert "for one file" in capsys.readouterr().err


@pytest.mark.slow
def test_captions_of_a_long_file_are_of_short_pieces(
    tmp_path: Path, phrase: Pcm, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wav(tmp_path / "long.wav", np.concatenate([phrase] * 12))
    assert cli.main(["transcribe", "--format", "srt", str(path)]) == 0
    starts = [line for line in capsys.readouterr().out.splitlines() if "-->" in line]
    assert len(starts) >= 3


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, phrase: Pcm) -> None:
    path = write_wav(tmp_path / "a.wav", phrase)
    for arguments in (["transcribe", str(path)], ["speak", "one, two. " * 400, "-o", "-"]):
        command = [sys.executable, "-m", "offhook", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
        assert process.stdout
        process.stdout.close()
        _, errors = process.communicate(timeout=HANGS_S)
        assert errors == b""
        assert process.returncode == 128 + signal.SIGPIPE


def test_qwen3_asr_writes_down_a_file_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from tests.pipeline.engines.shared.model import tiny

    noise = np.random.default_rng(1).normal(0, 3000, 40 * RATE_IN).astype(np.int16)
    path = write_wav(tmp_path / "noise.wav", noise)
    model = ["--model", str(tiny.write_original(tmp_path, seed=4)), "--device", "cpu"]
    command = ["transcribe", "--engine", "qwen3-asr", *model, str(path)]
    assert cli.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["segments"]) == 2
    assert result["segments"][0]["text"]
    assert result["duration"] == 40.0
    assert cli.main([*command, "--words"]) == 1
    assert "--aligner" in capsys.readouterr().err


@pytest.mark.slow
def test_a_long_file_comes_in_pieces_cut_where_it_is_quiet(
    tmp_path: Path,
    phrase: Pcm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(transcribe_io, "PIECE_S", len(phrase) / RATE_IN)
    path = write_wav(tmp_path / "long.wav", np.tile(phrase, 3))
    assert cli.main(["transcribe", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line for line in lines)


def test_without_a_worker_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(RATE_IN, np.int16))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert cli.main(["transcribe", "--url", url, str(path)]) == 1
    error = capsys.readouterr().err
    assert f"no speech worker at {url}" in error
    assert "offhook worker asr" in error


@pytest.mark.parametrize(("engine", "name"), [("qwen3-asr", "Qwen3-ASR"), ("nemotron", "Nemotron")])
@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, name: str
) -> None:
    for command in (["transcribe", str(tmp_path / "a.wav")], ["worker", "asr"]):
        assert cli.main([*command, "--engine", engine]) == 1
        error = capsys.readouterr().err
        assert f"{name} needs torch" in error
        assert "pip install torch" in error
        assert "[asr] url" in error
