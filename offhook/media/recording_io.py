"""Recordings to disk: one thread for all calls of the process, Ogg Opus and JSON lines.

Pages reach the file system as they fill, so that the end of the process costs the last second or
less. Nothing is synced to the platter: a power cut costs what the kernel had not written.
"""

import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from queue import SimpleQueue

import av
from loguru import logger

from offhook.media.pcm import PACKET_MS, Pcm
from offhook.media.recording import RECORDING_RATE, Recorder, StereoMixer, Tick, recording_name

WRITE_INTERVAL_S = 0.4
"""How long sound gathers before it is encoded and written."""
PAGE_MS = 200
"""Sound in one Ogg page; the muxer keeps back one full page and the one that fills."""
TICKS_PER_TURN = 50
"""Ticks one recording may write before the others have their turn."""
CLOSE_TIMEOUT_S = 5.0
"""How long `RecordingWriter.close` waits for the disk."""
BITRATE = 40_000
COMPLEXITY = 5
"""Half the encoder's work of 10, and with the `audio` application the channels stay apart."""


def _create(path: Path) -> FileIO:
    """A new file that only we can read. Raises FileExistsError rather than follow or overwrite."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return FileIO(descriptor, "wb")


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def check_writable(directory: Path) -> None:
    """Make the folder of recordings if it is not there. Raises OSError when nothing can be written
    into it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise OSError(f"cannot write to {directory}")


class _Pages:
    """What FFmpeg writes pages to. An error is kept, not raised: what a callback raises comes out
    of PyAV's next call in the same thread, which may be that of another recording."""

    def __init__(self, path: Path) -> None:
        self.file = _create(path)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None and not self.file.closed:
            try:
                _write_all(self.file, data)
            except OSError as error:
                self.error = error
        return len(data)


class OggOpusFile:
    """Stereo at 24 kHz into a new Ogg Opus file (RFC 7845)."""

    def __init__(self, path: Path) -> None:
        self._pages = _Pages(path)
        options = {"flush_packets": "1", "page_duration": str(PAGE_MS * 1000)}
        self._container = av.open(self._pages, "w", format="ogg", container_options=options)
        self._stream = self._container.add_stream("libopus", rate=RECORDING_RATE, layout="stereo")
        self._stream.bit_rate = BITRATE
        self._stream.options = {"application": "audio", "compression_level": str(COMPLEXITY)}
        self._written = 0

    def write(self, stereo: Pcm) -> None:
        """Append int16[2 * n], left and right in turn. Raises OSError."""
        if not len(stereo):
            return
        frame = av.AudioFrame.from_ndarray(stereo.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate = RECORDING_RATE
        frame.pts = self._written
        self._written += frame.samples
        self._container.mux(self._stream.encode(frame))
        self._check()

    def finish(self) -> None:
        """Write what the encoder holds, and the last page. Raises OSError."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._pages.file.close()
        self._check()

    def abandon(self) -> None:
        """Leave the file as far as it is written."""
        self._pages.file.close()
        self._container.close()

    def _check(self) -> None:
        if self._pages.error is not None:
            raise self._pages.error


class RecordingFiles:
    """The disk's side of one Recorder: makes its two files and writes them, a turn at a time.
    Raises OSError."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        name = recording_name(recorder.call_id)
        self.recorder = recorder
        self._mixer = StereoMixer()
        self._timeline = _create(directory / f"{name}.jsonl")
        try:
            self._sound = OggOpusFile(directory / f"{name}.ogg")
        except OSError:
            self._timeline.close()
            (directory / f"{name}.jsonl").unlink()
            raise
        self._ticks = 0

    def turn(self) -> bool:
        """Write what is queued, at most TICKS_PER_TURN; True when there may be more."""
        # Read before the ticks are taken: nothing follows what is queued once it is set.
        closed = self.recorder.closed
        ticks = self.recorder.take(TICKS_PER_TURN)
        more = len(ticks) == TICKS_PER_TURN
        self._write(ticks, last=closed and not more)
        return more

    def _write(self, ticks: list[Tick], last: bool) -> None:
        self._ticks += len(ticks)
        self._sound.write(self._mixer.mix(ticks, last))
        if last:
            self._sound.finish()
            self._end_timeline()
        elif lines := self.recorder.timeline.take():
            _write_all(self._timeline, lines)

    @property
    def finished(self) -> bool:
        return self._timeline.closed

    def _end_timeline(self) -> None:
        timeline = self.recorder.timeline
        lines = timeline.take()
        timeline.write(
            "end",
            self._ticks * PACKET_MS,
            missed_ms=self.recorder.missed_ms,
            lines_dropped=timeline.lines_dropped,
        )
        _write_all(self._timeline, lines + timeline.take())
        self._timeline.close()

    def fail(self, error: Exception) -> None:
        self.recorder.error = f"{type(error).__name__}: {error}"
        self._sound.abandon()
        self._timeline.close()


class RecordingWriter:
    """Writes all recordings of the process into `directory`, which is made if it is not there.

    A recording that fails, as on a full disk, ends alone: its recorder's `error` says why and the
    call goes on. `on_failed` is told of it, by the thread that writes. A stalled disk stalls all of
    them, each up to the bound of its queue.
    """

    def __init__(self, directory: Path, on_failed: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._on_failed = on_failed
        self._opened: SimpleQueue[RecordingFiles] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def open(self, call_id: str, started_at: float) -> Recorder:
        """Begin NAME.ogg and NAME.jsonl; `started_at` is seconds since 1970. Raises OSError, and
        FileExistsError when the call id was recorded before. Waits for the file system to make two
        files, a millisecond where it is local."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        recorder = Recorder(call_id, started_at)
        self._opened.put(RecordingFiles(self._directory, recorder))
        return recorder

    def close(self) -> None:
        """Finish all recordings and end the thread. Waits for the disk: not for the event loop."""
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("recordings are not finished: the disk took over {} s", CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        recordings: list[RecordingFiles] = []
        while not self._closing.wait(WRITE_INTERVAL_S):
            self._turns(recordings)
        self._turns(recordings)
        for recording in recordings:
            recording.recorder.close()
        self._turns(recordings)

    def _turns(self, recordings: list[RecordingFiles]) -> None:
        """Write all that is queued, the recordings taking turns; drop those that are done."""
        while not self._opened.empty():
            recordings.append(self._opened.get())
        waiting = list(recordings)
        while waiting:
            waiting = [recording for recording in waiting if self._turn(recording)]
        recordings[:] = [
            recording
            for recording in recordings
            if not recording.finished and recording.recorder.error is None
        ]

    def _turn(self, recording: RecordingFiles) -> bool:
        try:
            return recording.turn()
        # Whatever it is, it must not end the recordings of the other calls.
        except Exception as error:
            logger.exception("recording of call {} failed", recording.recorder.call_id)
            recording.fail(error)
            self._on_failed()
            return False
