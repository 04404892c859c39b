"""Files to text: what is said in them, whatever they are, and a clear word when they are not."""

import json
import socket
import wave
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import av
import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.flite_io import FliteSynthesizer
from offhook.pipeline.recognizer import EngineError
from offhook.web import cli, transcribe_io
from offhook.web.transcribe_io import FileError, read_pieces


@pytest.fixture(scope="module")
def phrase() -> Pcm:
    try:
        sound = FliteSynthesizer().sound(["tell", "me", "about", "your", "opening", "hours"], "slt")
    except EngineError as error:
        pytest.skip(str(error))
    places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
    pcm = np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)
    return np.pad(pcm, RATE_IN // 2)


def write_wav(path: Path, pcm: Pcm, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE_IN)
        file.writeframes(np.repeat(pcm, channels).tobytes())
    return path


def write_video(path: Path, pcm: Pcm) -> Path:
    """Pictures and sound, as a telephone makes them."""
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("mpeg4", rate=5)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=RATE_IN)
        for _ in range(len(pcm) * 5 // RATE_IN):
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
        for at in range(0, len(pcm), 1024):
            block = av.AudioFrame.from_ndarray(pcm[None, at : at + 1024], "s16", "mono")
            block.sample_rate, block.pts, block.time_base = RATE_IN, at, Fraction(1, RATE_IN)
            container.mux(sound.encode(block))
        container.mux(pictures.encode(None))
        container.mux(sound.encode(None))
    return path


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


def test_qwen3_asr_writes_down_a_file_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from tests.pipeline.models import tiny

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


def test_a_long_file_comes_in_pieces_cut_where_it_is_quiet(
    tmp_path: Path,
    phrase: Pcm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(transcribe_io, "CHUNK_SECONDS", len(phrase) / RATE_IN)
    monkeypatch.setattr(transcribe_io, "READ_SECONDS", 1)
    path = write_wav(tmp_path / "long.wav", np.tile(phrase, 3))
    assert cli.main(["transcribe", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line for line in lines)


def test_pieces_are_the_whole_file_and_never_much_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcribe_io, "CHUNK_SECONDS", 2.0)
    monkeypatch.setattr(transcribe_io, "READ_SECONDS", 4)
    pcm = np.random.default_rng(1).integers(-9000, 9000, 30 * RATE_IN).astype(np.int16)
    pieces = list(read_pieces(write_wav(tmp_path / "noise.wav", pcm)))
    assert np.array_equal(np.concatenate([piece.pcm for piece in pieces]), pcm)
    starts = np.cumsum([0] + [len(piece.pcm) for piece in pieces])
    assert [piece.start for piece in pieces] == list(starts[:-1])
    assert max(len(piece.pcm) for piece in pieces) <= 3 * RATE_IN
    assert pieces[-1].done == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"no sound at all", "no audio or video that can be read"),
        ("empty.wav", b"", "no audio or video that can be read"),
        ("a folder", None, "is a folder: name the files in it"),
        ("silent.mp4", "pictures", "there is no audio track in it"),
        ("nothing.wav", "header", "there is no sound in it"),
    ],
)
def test_what_is_no_sound_says_so(tmp_path: Path, name: str, content: object, says: str) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif content == "pictures":
        with av.open(str(path), "w") as container:
            pictures = container.add_stream("mpeg4", rate=5)
            pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
            container.mux(pictures.encode(None))
    elif content == "header":
        write_wav(path, np.zeros(0, np.int16))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(FileError, match=says):
        list(read_pieces(path))


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


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["transcribe", "--engine", "qwen3-asr", str(tmp_path / "a.wav")]) == 1
    assert "pip install torch" in capsys.readouterr().err
    assert cli.main(["worker", "asr", "--engine", "qwen3-asr"]) == 1
    assert "pip install torch" in capsys.readouterr().err
