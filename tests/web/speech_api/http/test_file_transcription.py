"""Files to pieces and pieces to text: all of the sound, little of it in memory, and a plain word
for what cannot be heard."""

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.files.decoding_io import SILENT_S
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.streams.audio_chunks import split
from offhook.web.speech_api.http.file_transcription_io import (
    EARLY_S,
    PIECE_S,
    FileError,
    FileTranscription,
    Piece,
    Pieces,
    RawPcm,
    SegmentProgress,
)
from tests.media.files.decoders import decoders
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import ScriptedHearing, ScriptedRecognizer
from tests.web.speech_api.recordings import (
    encoded,
    tone,
    wav,
    write_pictures,
    write_video,
    write_wav,
)

NOISE = np.random.default_rng(1).integers(-9000, 9000, 70 * RATE_IN).astype(np.int16)


# --- pieces ---


def test_pieces_are_the_whole_file_cut_where_it_is_quiet(tmp_path: Path) -> None:
    pieces = list(Pieces(write_wav(tmp_path / "noise.wav", NOISE), (PIECE_S,)))
    assert np.array_equal(np.concatenate([piece.pcm for piece in pieces]), NOISE)
    assert [(piece.start, piece.end) for piece in pieces] == split(NOISE, PIECE_S)
    assert pieces[-1].total == pytest.approx(70)


def test_first_pieces_are_short_when_text_is_wanted_early(tmp_path: Path) -> None:
    pieces = list(Pieces(write_wav(tmp_path / "noise.wav", NOISE), EARLY_S))
    seconds = [len(piece.pcm) / RATE_IN for piece in pieces]
    assert 1 <= seconds[0] <= 3
    assert 2 <= seconds[1] <= 6
    assert max(seconds) <= 12
    assert np.array_equal(np.concatenate([piece.pcm for piece in pieces]), NOISE)


def test_a_cut_falls_into_the_pause_near_it(tmp_path: Path) -> None:
    pcm = NOISE[: 12 * RATE_IN].copy()
    pcm[int(2.6 * RATE_IN) : int(2.8 * RATE_IN)] //= 3000
    first = next(Pieces(write_wav(tmp_path / "pause.wav", pcm), EARLY_S))
    assert 2.6 <= first.end / RATE_IN <= 2.8


def test_a_last_word_is_not_left_to_itself(tmp_path: Path) -> None:
    pcm = NOISE[: int(2.9 * RATE_IN)].copy()
    pcm[int(2.7 * RATE_IN) : int(2.85 * RATE_IN)] //= 3000
    (piece,) = Pieces(write_wav(tmp_path / "short.wav", pcm), EARLY_S)
    assert len(piece.pcm) == len(pcm)


def test_a_file_is_read_no_further_than_it_is_needed(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "long.wav", np.tile(NOISE, 10))
    pieces = Pieces(path, EARLY_S)
    next(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "concatenate", lambda blocks: pytest.fail("read on"))
        pieces.close()


def test_silence_is_known_as_such_and_is_no_first_piece(tmp_path: Path) -> None:
    pcm = np.concatenate([np.zeros(40 * RATE_IN, np.int16), NOISE[: 6 * RATE_IN]])
    pieces = list(Pieces(write_wav(tmp_path / "late.wav", pcm), EARLY_S))
    loud = [piece for piece in pieces if not piece.silent]
    assert 39 * RATE_IN <= loud[0].start <= 41 * RATE_IN
    assert len(loud[0].pcm) <= 3 * RATE_IN
    assert np.array_equal(np.concatenate([piece.pcm for piece in pieces]), pcm)


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("ogg", "libopus"),
        ("mp3", "libmp3lame"),
        ("flac", "flac"),
        ("adts", "aac"),
        ("mp4", "aac"),
        ("webm", "libopus"),
        ("matroska", "pcm_s16le"),
        ("mov", "pcm_s16be"),
        ("aiff", "pcm_s16be"),
        ("au", "pcm_mulaw"),
        ("caf", "pcm_s16le"),
    ],
)
def test_any_container_is_read(tmp_path: Path, form: str, codec: str) -> None:
    path = tmp_path / "upload"
    path.write_bytes(encoded(tone(3), form, codec))
    (piece,) = Pieces(path, (PIECE_S,))
    assert len(piece.pcm) == pytest.approx(3 * RATE_IN, abs=0.15 * RATE_IN)
    spectrum = np.abs(np.fft.rfft(piece.pcm[: 2 * RATE_IN].astype(np.float32)))
    assert np.argmax(spectrum) / 2 == pytest.approx(440, abs=5)


def test_video_stereo_and_raw_samples_are_read(tmp_path: Path) -> None:
    film = list(Pieces(write_video(tmp_path / "film.mp4", tone(3)), (PIECE_S,)))
    assert film[-1].end == pytest.approx(3 * RATE_IN, abs=0.15 * RATE_IN)
    stereo = list(Pieces(write_wav(tmp_path / "stereo.wav", tone(3), 2), (PIECE_S,)))
    assert stereo[-1].end == 3 * RATE_IN
    raw = tmp_path / "raw"
    raw.write_bytes(np.repeat(tone(2), 2).tobytes())
    (piece,) = Pieces(raw, (PIECE_S,), RawPcm(RATE_IN, channels=2))
    assert len(piece.pcm) == 2 * RATE_IN


def test_of_a_file_cut_off_what_is_there_is_heard(tmp_path: Path) -> None:
    for form, codec in (("ogg", "libopus"), ("mp3", "libmp3lame"), ("flac", "flac")):
        data = encoded(tone(10), form, codec)
        path = tmp_path / form
        path.write_bytes(data[: len(data) // 2])
        (piece,) = Pieces(path, (PIECE_S,))
        assert 4 <= len(piece.pcm) / RATE_IN <= 6
    path = tmp_path / "cut.wav"
    path.write_bytes(wav(tone(10))[: 5 * RATE_IN * 2])
    (piece,) = Pieces(path, (PIECE_S,))
    assert len(piece.pcm) / RATE_IN == pytest.approx(5, abs=0.1)


def test_damage_in_the_middle_costs_no_more_than_itself_and_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    data = bytearray(encoded(tone(10), "mp3", "libmp3lame"))
    middle = len(data) // 2
    data[middle : middle + 1000] = bytes(range(250)) * 4
    path = tmp_path / "damaged.mp3"
    path.write_bytes(data)
    (piece,) = Pieces(path, (PIECE_S,))
    assert len(piece.pcm) / RATE_IN >= 8.5
    assert "faults in a file" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"no sound at all", "no audio or video that can be read"),
        ("a.mp3", b"no sound at all" * 500, "no audio or video|cannot be decoded|no sound"),
        ("a.zip", b"PK\x03\x04" + bytes(500), "no audio or video that can be read"),
        ("empty.wav", b"", "no audio or video that can be read"),
        ("cut.mp4", "half a film", "no audio or video that can be read"),
        ("a folder", None, "is a folder: name the files in it"),
        ("silent.mp4", "pictures", "there is no audio track in it"),
        ("nothing.wav", wav(np.zeros(0, np.int16)), "there is no sound in it"),
        ("slow.wav", wav(tone(1), rate=10), "10 Hz, not 1000 to 768000"),
    ],
)
def test_what_cannot_be_heard_says_so(
    tmp_path: Path, name: str, content: bytes | str | None, says: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif content == "pictures":
        write_pictures(path)
    elif content == "half a film":
        data = write_video(path, tone(2)).read_bytes()
        path.write_bytes(data[: len(data) // 2])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(FileError, match=says) as refused:
        list(Pieces(path, (PIECE_S,)))
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile secret.wav\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
    ],
    ids=["hls", "concat", "sdp"],
)
def test_a_file_that_names_others_is_not_followed(tmp_path: Path, text: str) -> None:
    secret = write_wav(tmp_path / "secret.wav", tone(2))
    for ending in ("m3u8", "ffconcat", "sdp", "wav"):
        path = tmp_path / f"list.{ending}"
        path.write_text(text.format(secret))
        with pytest.raises(FileError):
            list(Pieces(path, (PIECE_S,)))


def test_too_much_sound_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(encoded(np.zeros(180 * RATE_IN, np.int16), "flac", "flac"))
    pieces = Pieces(path, (PIECE_S,), most_s=60)
    with pytest.raises(FileError, match="more than 1 minutes of sound"):
        next(pieces)
    assert len(list(Pieces(path, (PIECE_S,), most_s=181))) > 1


def test_a_header_that_lies_about_the_length_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "lie.flac"
    data = bytearray(encoded(tone(3), "flac", "flac"))
    data[22:26] = b"\x40\x00\x00\x00"  # samples in all, of STREAMINFO: 18 hours
    path.write_bytes(data)
    (piece,) = Pieces(path, (PIECE_S,), most_s=60)
    assert len(piece.pcm) == 3 * RATE_IN
    assert piece.total == pytest.approx(3, abs=0.1)
    with pytest.raises(FileError, match=r"more than 0\.04 minutes"):
        next(Pieces(path, (PIECE_S,), most_s=2.4))
    pipe = bytearray(wav(tone(3)))
    pipe[4:8] = pipe[40:44] = b"\xff\xff\xff\xff"  # made where nobody knew how long it would be
    path.write_bytes(pipe)
    (piece,) = Pieces(path, (PIECE_S,), most_s=60)
    assert len(piece.pcm) == 3 * RATE_IN


def test_a_file_made_to_be_slow_is_given_up(tmp_path: Path) -> None:
    data = bytearray(encoded(tone(60), "caf", "pcm_s16le"))
    description = data.index(b"desc") + 12
    data[description + 20 : description + 24] = (2).to_bytes(4, "big")  # samples in a packet
    path = tmp_path / "slow.caf"
    path.write_bytes(data)
    (piece,) = Pieces(path, (PIECE_S,))
    assert len(piece.pcm) < 3 * RATE_IN


def test_damaged_files_are_heard_or_refused(tmp_path: Path) -> None:
    forms = [("ogg", "libopus"), ("mp3", "libmp3lame"), ("mp4", "aac"), ("caf", "pcm_s16le")]
    files = [encoded(tone(2), form, codec) for form, codec in forms] + [wav(tone(2))]
    path = tmp_path / "damaged"

    @given(
        st.sampled_from(files),
        st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6),
        st.floats(0, 1),
    )
    def check(file: bytes, changes: list[tuple[float, bytes]], end: float) -> None:
        data = bytearray(file)
        for place, change in changes:
            at = int(place**3 * len(data))  # mostly near the beginning, where the headers are
            data[at : at + len(change)] = change
        path.write_bytes(data[: int(end * len(data))] if end > 0.5 else data)
        with contextlib.suppress(FileError):
            pieces = list(Pieces(path, EARLY_S, most_s=30))
            assert pieces[-1].end <= 30 * RATE_IN

    check()


# --- hearing ---


async def hear(
    path: Path, engine: ScriptedRecognizer, *, early: bool = False
) -> tuple[list[SegmentProgress], ScriptedHearing]:
    stream = await engine.open()
    hearing = FileTranscription(stream, Pieces(path, EARLY_S), early=early)
    try:
        return [heard async for heard in hearing.segments()], stream
    finally:
        await stream.close()
        await hearing.close()


async def test_words_have_the_times_of_the_file(tmp_path: Path) -> None:
    silence = np.zeros(20 * RATE_IN, np.int16)
    pcm = np.concatenate([silence, NOISE[: 4 * RATE_IN], silence, NOISE[: 4 * RATE_IN]])
    heard, stream = await hear(write_wav(tmp_path / "a.wav", pcm), ScriptedRecognizer())
    said = [each.segment for each in heard if each.segment.text]
    for segment in said:
        assert segment.words[0].start_ms == pytest.approx(segment.start * 1000, abs=2)
        assert segment.words[-1].end_ms == pytest.approx(segment.end * 1000, abs=2)
    assert said[-1].end == 48
    assert heard[-1].done == 1.0
    assert [each.segment.start for each in heard[1:]] == [e.segment.end for e in heard[:-1]]
    assert stream.samples < 30 * RATE_IN  # the silence was no matter of the engine's


async def test_hours_of_silence_cost_the_engine_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silence.flac"
    path.write_bytes(encoded(np.zeros(1200 * RATE_IN, np.int16), "flac", "flac"))
    engine = ScriptedRecognizer()
    heard, stream = await hear(path, engine)
    assert stream.samples == engine.count == 0
    assert heard[-1].segment.end == pytest.approx(1200, abs=0.1)
    assert not any(each.segment.text for each in heard)


async def test_the_first_text_does_not_wait_for_more_of_the_file(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", NOISE)
    stream = await ScriptedRecognizer().open()
    hearing = FileTranscription(stream, Pieces(path, EARLY_S), early=True)
    heard = hearing.segments()
    first = await anext(heard)
    assert stream.samples == int(first.segment.end * RATE_IN)
    await anext(heard)
    await anext(heard)
    assert stream.samples < 40 * RATE_IN
    await heard.aclose()
    await stream.close()
    await hearing.close()


async def test_an_engine_that_breaks_is_an_error_and_no_hang(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", NOISE)
    with pytest.raises(EngineError, match="it burns"):
        await hear(path, ScriptedRecognizer(fails_within="it burns"))


async def test_an_engine_whose_stream_ends_is_an_error_and_no_hang(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", NOISE[: 2 * RATE_IN])
    stream = await ScriptedRecognizer(slow_s=60).open()
    hearing = FileTranscription(stream, Pieces(path, EARLY_S))
    reading = asyncio.create_task(anext(hearing.segments()))
    await until(lambda: hearing._ended)
    await stream.close()
    with pytest.raises(EngineError, match="ended before"):
        await asyncio.wait_for(reading, HANGS_S)
    await hearing.close()


async def test_to_stop_waits_for_no_decoder(tmp_path: Path) -> None:
    """Of a file whose next piece never comes."""
    path = write_wav(tmp_path / "long.wav", np.tile(NOISE, 10))
    stream = await ScriptedRecognizer().open()
    hearing = FileTranscription(stream, Pieces(path, EARLY_S))
    await hearing.begin()
    (pid,) = decoders()
    os.kill(pid, signal.SIGSTOP)
    reading = asyncio.create_task(anext(hearing.segments()))
    await until(lambda: len(hearing._waiting) > 0 and not reading.done())
    reading.cancel()
    await asyncio.wait_for(hearing.close(), SILENT_S / 2)
    await stream.close()
    await until(lambda: not decoders())


def test_a_piece_is_silent_only_when_nobody_could_hear_it() -> None:
    def is_silent(*samples: int) -> bool:
        pcm: Pcm = np.array(samples, np.int16)
        return Piece(0, pcm, None).silent

    assert is_silent(0, 1, -1, 0)
    assert not is_silent(0, 0, -300)
    assert not is_silent(-32768)
