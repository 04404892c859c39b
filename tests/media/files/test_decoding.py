"""Files decoded in processes of their own: what their decoders may do, and what is said when one
ends."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offhook.media.files import decoding_io
from offhook.media.files.decoder_host_io import FILE_FD, SOUND_FD
from offhook.media.files.decoding_io import DecoderUnavailable, Decoding, _Host
from offhook.media.files.formats import (
    CODECS,
    DECODER_START_S,
    FORMATS,
    MAX_DECODER_BYTES,
    FileError,
)
from offhook.media.pcm import RATE_IN, Pcm
from tests.media.files.decoders import decoders, hosts
from tests.support.processes import gone
from tests.support.waiting import until
from tests.web.speech_api.recordings import encoded, tone, wav

SECRET = "an-api-key"
LONG_S = 600


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A file with more sound than fits on the way to its reader."""
    path = tmp_path / "long.wav"
    path.write_bytes(wav(np.tile(tone(10), LONG_S // 10)))
    return path


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Host]:
    """A host of its own, which the environment's secrets do not reach."""
    monkeypatch.setenv("OFFHOOK_API_KEY", SECRET)
    host = _Host()
    monkeypatch.setattr(decoding_io, "_HOST", host)
    yield host
    host.end()


def opened(path: Path) -> Decoding:
    with path.open("rb") as file:
        return Decoding(file, RATE_IN, name=path.name)


def began(path: Path) -> tuple[Decoding, Iterator[object], int]:
    """A decoding, its blocks after the first, and the id of its process."""
    before = set(decoders())
    decoding = opened(path)
    blocks = decoding.blocks()
    next(blocks)
    (pid,) = set(decoders()) - before
    return decoding, blocks, pid


def test_a_decoder_has_limits_and_nothing_but_its_file(host: _Host, long: Path) -> None:
    decoding, _, pid = began(long)
    proc = Path(f"/proc/{pid}")
    rows = [line.split("  ") for line in (proc / "limits").read_text().splitlines()]
    limits = {row[0]: next(filter(str.strip, row[1:])).strip() for row in rows}
    used = int((proc / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    assert used <= int(limits["Max address space"]) <= used + MAX_DECODER_BYTES
    assert DECODER_START_S <= int(limits["Max cpu time"]) <= DECODER_START_S + LONG_S / 20
    assert limits["Max file size"] == limits["Max core file size"] == "0"
    files = {int(link.name): os.readlink(link) for link in (proc / "fd").iterdir()}
    assert files.keys() == {0, 1, 2, FILE_FD, SOUND_FD}
    assert {files[number] for number in range(3)} == {os.devnull}
    assert files[FILE_FD] == str(long)
    assert SECRET not in (proc / "environ").read_text()
    assert (proc / "oom_score_adj").read_text().strip() == "1000"
    decoding.close()


def sound_of(content: bytes, tmp_path: Path) -> Pcm:
    path = tmp_path / "sound.wav"
    path.write_bytes(content)
    decoding = opened(path)
    sound = np.concatenate([block[0] for block in decoding.blocks()])
    decoding.close()
    return sound


def test_all_of_joined_wav_files_is_heard(tmp_path: Path) -> None:
    first, second, third = tone(1, 300), tone(1.5, 600), tone(0.5, 900)
    sound = sound_of(wav(first) + wav(second, channels=2) + wav(third), tmp_path)
    assert len(sound) == len(first) + len(second) + len(third)
    for at, part in ((0, first), (RATE_IN, second), (RATE_IN * 5 // 2, third)):
        heard = sound[at : at + len(part)].astype(float)
        assert np.corrcoef(heard, part)[0, 1] > 0.99
    assert len(sound_of(wav(first, rate=8_000) + wav(second), tmp_path)) == 2 * len(first) + len(
        second
    )


@pytest.mark.parametrize(
    "more", [b"x", b"RIFF\0\0\0\0WAVE", b"RIFF\xff\xff\xff\xffWAVEfmt ", wav(tone(1))[:20]]
)
def test_what_follows_a_wav_file_and_is_none_changes_nothing(tmp_path: Path, more: bytes) -> None:
    assert np.array_equal(sound_of(wav(tone(1)) + more, tmp_path), tone(1))


def test_a_joined_wav_file_that_is_cut_is_heard_as_far_as_it_goes(tmp_path: Path) -> None:
    content = wav(tone(1)) + wav(tone(1))
    assert len(sound_of(content[: -RATE_IN // 2 * 2], tmp_path)) == RATE_IN * 3 // 2


def test_a_decoder_waits_for_its_reader(long: Path) -> None:
    """All of the sound would be 19 MB."""
    decoding, blocks, pid = began(long)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    sent = sum(len(block[0]) for block in blocks)  # type: ignore[index]
    assert sent > (LONG_S - 3) * RATE_IN
    decoding.close()


async def test_a_decoder_ends_with_its_reader(long: Path) -> None:
    decoding, _, pid = began(long)
    decoding.close()
    await until(lambda: pid not in decoders())


async def test_a_decoder_that_does_nothing_more_is_stopped_from_another_thread(long: Path) -> None:
    decoding, blocks, pid = began(long)
    os.kill(pid, signal.SIGSTOP)
    rest: list[object] = []
    reading = threading.Thread(target=lambda: rest.extend(blocks))
    reading.start()
    decoding.stop()
    reading.join(30)
    assert not reading.is_alive()
    await until(lambda: pid not in decoders())


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSEGV, r"its decoder crashed \(SIGSEGV\)"),
        (signal.SIGABRT, r"its decoder crashed \(SIGABRT\)"),
        (signal.SIGKILL, "its decoder was killed: there was no memory for it"),
        (signal.SIGXCPU, "its decoder was ended: it took more than 20 s of a processor's time"),
    ],
)
def test_a_decoder_that_dies_is_said(long: Path, number: signal.Signals, says: str) -> None:
    _, blocks, pid = began(long)
    os.kill(pid, number)
    with pytest.raises(FileError, match=says):
        list(blocks)
    assert sum(1 for _ in opened(long).blocks()) > 10  # the next file is decoded


def test_a_host_that_dies_is_no_fault_of_the_file_and_comes_back(host: _Host, long: Path) -> None:
    _, blocks, _ = began(long)
    (pid,) = [pid for pid in hosts(os.getpid()) if pid == host.pid]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DecoderUnavailable):
        list(blocks)
    assert sum(1 for _ in opened(long).blocks()) > 10


async def test_decoders_end_with_their_host(host: _Host, long: Path) -> None:
    _, _, pid = began(long)
    host.end()
    await until(lambda: gone(pid))


def test_a_host_that_cannot_start_is_said(
    host: _Host, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_io, "COMMAND", ("/nonexistent/python",))
    with pytest.raises(DecoderUnavailable, match="No such file"):
        opened(long)


@pytest.mark.parametrize(
    ("form", "codec", "says"),
    [
        ("voc", "pcm_s16le", "no audio or video that can be read"),
        ("nut", "pcm_s16le", "no audio or video that can be read"),
        ("tta", "tta", "no audio or video that can be read"),
        ("matroska", "tta", r"of a kind that is not decoded here \(tta\)"),
        ("matroska", "wavpack", r"of a kind that is not decoded here \(wavpack\)"),
    ],
)
def test_only_listed_formats_and_codecs_are_opened(
    tmp_path: Path, form: str, codec: str, says: str
) -> None:
    path = tmp_path / "upload"
    path.write_bytes(encoded(tone(1), form, codec))
    with pytest.raises(FileError, match=says):
        list(opened(path).blocks())


def test_what_is_listed_is_there() -> None:
    """In PyAV's FFmpeg, which may be another one tomorrow."""
    import av

    assert {name for name in FORMATS if name not in _demuxers()} == set()
    assert len([name for name in CODECS if name in av.codecs_available]) > 40


def _demuxers() -> set[str]:
    import av

    return {part for name in av.formats_available for part in name.split(",")}


def test_the_documented_formats_are_those_that_are_opened() -> None:
    text = (Path(__file__).parents[3] / "docs" / "speech-api.md").read_text()
    listed = text[text.index("<!-- formats -->") : text.index("<!-- /formats -->")]
    words = {"matroska": "WebM", "mov": "MP4", "asf": "WMA", "mpegts": "TS", "aac": "AAC"}
    for name in FORMATS:
        assert words.get(name, name.upper() if name != "ogg" else "Ogg") in listed, name
