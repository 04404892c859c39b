"""Recordings as they are found on disk: decoded again by an independent player (FFmpeg)."""

import io
import json
import re
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm, dbfs
from offhook.media.recording import (
    QUEUE_MS,
    QUEUE_TICKS,
    TIMELINE_LINES,
    Recorder,
    Tick,
    recording_name,
)
from offhook.media.recording_io import (
    BITRATE,
    WRITE_INTERVAL_S,
    OggOpusFile,
    RecordingFiles,
    RecordingWriter,
)
from offhook.media.sealing.files_io import LocalFile, StoredFile
from offhook.media.sealing.keyring import Keyring
from offhook.media.sealing.sealed import CHUNK_BYTES

DECODED_RATE = 48_000
STARTED_AT = 1_800_000_000.5
CHIRP_MS = 20


def chirp(rate: int) -> Pcm:
    """20 ms from 300 to 6000 Hz: a sound whose place is found to a fraction of a ms."""
    t = np.arange(rate * CHIRP_MS // 1000) / rate
    phase = 2 * np.pi * (300 * t + (6000 - 300) / 2 * t**2 / (CHIRP_MS / 1000))
    return (12_000 * np.sin(phase) * np.hanning(len(t))).astype(np.int16)


def noise(samples: int, level: float, seed: int) -> Pcm:
    return (np.random.default_rng(seed).standard_normal(samples) * level).astype(np.int16)


def decode(source: Path | bytes) -> Pcm:
    """Both channels at 48 kHz, int16[2, n]."""
    file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
    with av.open(file, "r") as container:
        frames = []
        packets = container.demux(audio=0)
        while True:
            try:
                for frame in next(packets).decode():
                    frames.append(frame.to_ndarray())
            except (StopIteration, av.FFmpegError):
                break
    sound: Pcm = (np.concatenate(frames, 1) * 32767).clip(-32768, 32767).astype(np.int16)
    return sound


def place_ms(channel: Pcm, near_ms: float) -> float:
    """Where the chirp stands, searched 200 ms around."""
    reference = chirp(DECODED_RATE).astype(np.float64)
    start = int((near_ms - 200) * DECODED_RATE / 1000)
    part = channel[start : start + DECODED_RATE * 420 // 1000].astype(np.float64)
    return float((start + np.argmax(np.correlate(part, reference))) * 1000 / DECODED_RATE)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def finish(recorder: Recorder, files: RecordingFiles) -> None:
    recorder.close()
    while files.write_queued():
        pass


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RecordingWriter]:
    writer = RecordingWriter(tmp_path)
    yield writer
    writer.close()


def test_both_sides_stay_where_they_were_said_for_a_minute(tmp_path: Path) -> None:
    recorder = Recorder("minute", STARTED_AT)
    files = RecordingFiles(tmp_path, recorder)
    heard = noise(60 * RATE_IN, 300, 1)
    said = noise(60 * RATE_OUT, 300, 2)
    chirps_ms = (1000, 30_010, 58_990)
    for at_ms in chirps_ms:
        for side, rate in ((heard, RATE_IN), (said, RATE_OUT)):
            at = at_ms * rate // 1000
            side[at : at + rate * CHIRP_MS // 1000] = chirp(rate)
    for i in range(3000):
        silent = 600 <= i < 700
        recorder.tick(
            heard[i * SAMPLES_IN : (i + 1) * SAMPLES_IN],
            None if silent else said[i * SAMPLES_OUT : (i + 1) * SAMPLES_OUT],
        )
        # In uneven bites, as a busy machine would.
        if i % 7 == 0 or i % 31 == 0:
            files.write_queued()
    finish(recorder, files)

    caller, agent = decode(tmp_path / "minute.ogg")
    assert len(caller) == 60 * DECODED_RATE
    for at_ms in chirps_ms:
        assert place_ms(caller, at_ms) == pytest.approx(at_ms, abs=0.5)
        assert place_ms(agent, at_ms) == pytest.approx(place_ms(caller, at_ms), abs=0.25)
    assert dbfs(agent[12_500 * 48 : 13_500 * 48]) < -70


def test_the_caller_is_left_and_alone_there(tmp_path: Path) -> None:
    recorder = Recorder("left", STARTED_AT)
    files = RecordingFiles(tmp_path, recorder)
    voice = noise(SAMPLES_IN, 4000, 3)
    for _ in range(100):
        recorder.tick(voice, None)
    finish(recorder, files)
    caller, agent = decode(tmp_path / "left.ogg")
    assert dbfs(caller) > -25
    assert dbfs(agent) < dbfs(caller) - 40


def test_what_is_said_while_paused_is_not_on_disk(tmp_path: Path) -> None:
    recorder = Recorder("card", STARTED_AT)
    files = RecordingFiles(tmp_path, recorder)
    for i in range(150):
        if i == 50:
            recorder.pause()
        if i == 100:
            recorder.resume()
        recorder.tick(noise(SAMPLES_IN, 4000, i), noise(SAMPLES_OUT, 4000, i))
    finish(recorder, files)
    sound = decode(tmp_path / "card.ogg")
    for channel in sound:
        assert dbfs(channel[1040 * 48 : 1960 * 48]) < -60
        assert dbfs(channel[: 1000 * 48]) > -25
        assert dbfs(channel[2040 * 48 :]) > -25
    kinds = [(line["kind"], line["at_ms"]) for line in records(tmp_path / "card.jsonl")]
    assert kinds == [("header", 0), ("pause", 1000), ("resume", 2000), ("end", 3000)]


def test_a_stalled_disk_costs_sound_but_neither_memory_nor_alignment(tmp_path: Path) -> None:
    recorder = Recorder("stall", STARTED_AT)
    files = RecordingFiles(tmp_path, recorder)
    for i in range(QUEUE_TICKS + 300):
        recorder.tick(noise(SAMPLES_IN, 4000, i), None)
    assert recorder.missed_ms == 300 * 20
    while files.write_queued():
        pass
    after_ms = recorder.now_ms
    heard, said = np.zeros(50 * SAMPLES_IN, np.int16), np.zeros(50 * SAMPLES_OUT, np.int16)
    heard[RATE_IN // 2 :][: RATE_IN // 50] = chirp(RATE_IN)
    said[RATE_OUT // 2 :][: RATE_OUT // 50] = chirp(RATE_OUT)
    for i in range(50):
        recorder.tick(heard[i * SAMPLES_IN :][:SAMPLES_IN], said[i * SAMPLES_OUT :][:SAMPLES_OUT])
    finish(recorder, files)

    caller, agent = decode(tmp_path / "stall.ogg")
    assert len(caller) == recorder.now_ms * 48
    assert dbfs(caller[9000 * 48 : 9900 * 48]) > -25
    assert dbfs(caller[10_100 * 48 : 15_900 * 48]) < -70
    for channel in (caller, agent):
        assert place_ms(channel, after_ms + 500) == pytest.approx(after_ms + 500, abs=0.5)
    lines = records(tmp_path / "stall.jsonl")
    assert {"at_ms": 10_000, "kind": "gap", "length_ms": 6000} in lines
    assert lines[-1]["missed_ms"] == 6000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=12))
@settings(max_examples=50)
def test_the_queue_is_bounded_and_every_tick_comes_out_once(steps: list[tuple[bool, int]]) -> None:
    recorder = Recorder("bound", STARTED_AT)
    heard, said = noise(SAMPLES_IN, 100, 1), noise(SAMPLES_OUT, 100, 2)
    taken: list[Tick] = []
    for write, count in steps:
        if write:
            taken += recorder.read_ticks(count)
            continue
        for _ in range(count):
            recorder.tick(heard, said)
            recorder.timeline.write("word", recorder.now_ms, text="hello")
        kept_ms = recorder.now_ms - recorder.missed_ms
        kept_ms -= 20 * sum(tick[0] is heard for tick in taken)
        assert kept_ms <= QUEUE_MS
    recorder.close()
    taken += recorder.read_ticks(1_000_000)
    assert len(taken) * 20 == recorder.now_ms
    assert sum(tick[0] is not heard for tick in taken) * 20 == recorder.missed_ms
    assert recorder.timeline.read_lines().count(b"\n") <= TIMELINE_LINES


@pytest.mark.parametrize("keys", [None, Keyring([bytes(32)])])
def test_a_file_whose_writer_died_plays_up_to_the_last_second(
    tmp_path: Path, keys: Keyring | None
) -> None:
    path = tmp_path / "died.ogg"
    file = OggOpusFile(path, keys)
    voice = noise(10 * RATE_OUT * 2, 3000, 4)
    # As often as the writer's thread does it.
    bite = 2 * int(RATE_OUT * WRITE_INTERVAL_S)
    for i in range(0, len(voice), bite):
        file.write(voice[i : i + bite])
    left_behind = path.read_bytes()
    if keys is not None:
        assert b"OggS" not in left_behind
        stored = StoredFile(LocalFile(path), keys)
        left_behind = stored.read(0, stored.length)
        stored.close()
    # Cut anywhere in the last page and a half too, as when the file system lost its tail.
    for cut_bytes in range(0, 1500, 150):
        sound = decode(left_behind[: len(left_behind) - cut_bytes])
        lost_ms = 10_000 - sound.shape[1] / 48
        chunk_ms = 0 if keys is None else CHUNK_BYTES * 8000 / BITRATE
        assert lost_ms + WRITE_INTERVAL_S * 1000 <= (850 if cut_bytes == 0 else 1100) + chunk_ms
        assert dbfs(sound[0]) > -30


def test_a_call_is_two_private_files(tmp_path: Path, writer: RecordingWriter) -> None:
    recorder = writer.open("call-1", STARTED_AT)
    for i in range(75):
        recorder.tick(noise(SAMPLES_IN, 3000, i), None)
        if i == 24:
            recorder.timeline.write("final", recorder.now_ms, text="Grüß Gott", side="caller")
    recorder.close()
    writer.close()
    assert recorder.error is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["call-1.jsonl", "call-1.ogg"]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert decode(tmp_path / "call-1.ogg").shape == (2, 1500 * 48)
    header, final, end = records(tmp_path / "call-1.jsonl")
    assert (header["kind"], header["version"], header["call_id"]) == ("header", 1, "call-1")
    assert header["started_at"] == "2027-01-15T08:00:00.500+00:00"
    assert final == {"at_ms": 500, "kind": "final", "text": "Grüß Gott", "side": "caller"}
    assert end == {"at_ms": 1500, "kind": "end", "missed_ms": 0, "lines_dropped": 0}


def test_calls_still_up_are_finished_when_the_writer_closes(
    tmp_path: Path, writer: RecordingWriter
) -> None:
    recorders = [writer.open(f"c{i}", STARTED_AT) for i in range(5)]
    for _ in range(50):
        for recorder in recorders:
            recorder.tick(noise(SAMPLES_IN, 3000, 1), noise(SAMPLES_OUT, 3000, 2))
    writer.close()
    for i in range(5):
        assert decode(tmp_path / f"c{i}.ogg").shape == (2, 1000 * 48)
        assert records(tmp_path / f"c{i}.jsonl")[-1]["kind"] == "end"


def test_a_full_disk_ends_one_recording_and_says_why(
    tmp_path: Path, writer: RecordingWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit on file size stands for the full disk: the loud call hits it, the silent not."""
    loud, silent = writer.open("loud", STARTED_AT), writer.open("silent", STARTED_AT)
    for i in range(400):
        loud.tick(noise(SAMPLES_IN, 8000, i), noise(SAMPLES_OUT, 8000, i + 1))
        silent.tick(np.zeros(SAMPLES_IN, np.int16), None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert loud.error is not None
    assert "File too large" in loud.error
    assert silent.error is None
    assert decode(tmp_path / "silent.ogg").shape == (2, 8000 * 48)
    assert decode(tmp_path / "loud.ogg").shape[1] > 1000 * 48


def test_a_recording_is_never_written_over(tmp_path: Path, writer: RecordingWriter) -> None:
    for suffix in ("jsonl", "ogg"):
        precious = tmp_path / f"{suffix}.{suffix}"
        precious.write_text("precious")
        with pytest.raises(FileExistsError):
            writer.open(suffix, STARTED_AT)
        assert precious.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 2


@given(st.text(max_size=300))
def test_no_call_id_escapes_the_directory(call_id: str) -> None:
    name = recording_name(call_id)
    assert re.fullmatch(r"[A-Za-z0-9_~][A-Za-z0-9._~-]{0,120}", name)


@given(st.text("ab/.~-_", max_size=6), st.text("ab/.~-_", max_size=6))
def test_two_call_ids_never_share_a_name(a: str, b: str) -> None:
    assert (recording_name(a) == recording_name(b)) == (a == b)


def test_a_plain_call_id_is_its_own_name() -> None:
    assert recording_name("3f2a-77.B_1") == "3f2a-77.B_1"
    assert recording_name("../../etc/passwd").startswith("_.._etc_passwd~")
