"""Writes recordings to disk: one thread for all calls of the process, Ogg Opus and JSON lines.

Pages reach the file system as they fill, so a crash costs at most the last second. Nothing is
fsynced: a power cut costs what the kernel had not written.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import av
from loguru import logger

from offhook.media.pcm import PACKET_MS, Pcm
from offhook.media.recording import RECORDING_RATE, Recorder, StereoMixer, Tick, recording_name
from offhook.media.sealing.files_io import NewFile
from offhook.media.sealing.keyring import Keyring
from offhook.media.sealing.names import SUFFIX, timeline_path

WRITE_INTERVAL_S = 0.4
"""Interval at which queued audio is encoded and written."""
PAGE_MS = 200
"""Audio in one Ogg page; the muxer holds one full page and the one being filled."""
MAX_TICKS_PER_WRITE = 50
"""Ticks that one recording may write in its turn; the rest waits until the others had theirs."""
CLOSE_TIMEOUT_S = 5.0
"""Maximum time in s that `RecordingWriter.close` waits for the disk; then the recordings are left
incomplete, and an error is logged."""
BITRATE = 40_000
COMPLEXITY = 5
"""Half the encoder work of complexity 10; the `audio` application keeps the channels apart."""


@dataclass(frozen=True)
class FinishedRecording:
    """A recording that has its end."""

    place: str
    """Where its sound is: a path."""
    seconds: float
    sealed: bool


def sound_path(directory: Path, call_id: str, keys: Keyring | None) -> Path:
    """Returns where the sound of a recording is written."""
    return directory / f"{recording_name(call_id)}.ogg{'' if keys is None else SUFFIX}"


def check_writable(directory: Path) -> None:
    """Create the recordings folder if it is missing. Raises OSError if it is not writable."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"this user may not write to {directory}")


class _Pages:
    """The file object FFmpeg writes pages to. It stores errors instead of raising them: PyAV would
    re-raise them from its next call in the thread, perhaps for another recording."""

    def __init__(self, path: Path, keys: Keyring | None) -> None:
        self.file = NewFile(path, keys)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None and not self.file.closed:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)


class OggOpusFile:
    """Writes stereo at 24 kHz into a new Ogg Opus file (RFC 7845), sealed if there are keys."""

    def __init__(self, path: Path, keys: Keyring | None = None) -> None:
        self._pages = _Pages(path, keys)
        options = {"flush_packets": "1", "page_duration": str(PAGE_MS * 1000)}
        self._container = av.open(self._pages, "w", format="ogg", container_options=options)
        self._stream = self._container.add_stream("libopus", rate=RECORDING_RATE, layout="stereo")
        self._stream.bit_rate = BITRATE
        self._stream.options = {"application": "audio", "compression_level": str(COMPLEXITY)}
        self._written = 0

    def write(self, stereo: Pcm) -> None:
        """Append int16[2 * n], left and right interleaved. Raises OSError."""
        if not len(stereo):
            return
        frame = av.AudioFrame.from_ndarray(stereo.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate = RECORDING_RATE
        frame.pts = self._written
        self._written += frame.samples
        self._container.mux(self._stream.encode(frame))
        self._check()

    def finish(self) -> None:
        """Flush the encoder, write the last page and close the file. Raises OSError."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._check()
        self._pages.file.finish()

    def abandon(self) -> None:
        """Close the file with what has been written so far."""
        self._pages.file.abandon()
        self._container.close()

    def _check(self) -> None:
        if self._pages.error is not None:
            raise self._pages.error


class RecordingFiles:
    """The two files of one Recorder, written a part at a time. Methods raise OSError."""

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        keys: Keyring | None = None,
        on_finished: Callable[[FinishedRecording], None] = lambda recording: None,
    ) -> None:
        """`on_finished` is called in the writer's thread once both files have their ends."""
        sound = sound_path(directory, recorder.call_id, keys)
        self.recorder = recorder
        self._path, self._sealed = sound.absolute(), keys is not None
        self._on_finished = on_finished
        self._mixer = StereoMixer()
        self._timeline = NewFile(timeline_path(sound), keys)
        try:
            self._sound = OggOpusFile(sound, keys)
        except OSError:
            self._timeline.abandon()
            timeline_path(sound).unlink()
            raise
        self._ticks = 0

    def write_queued(self) -> bool:
        """Write up to TICKS_PER_TURN queued ticks. Returns True if there may be more."""
        # Read before the ticks: once it is set, nothing more is queued.
        closed = self.recorder.closed
        ticks = self.recorder.read_ticks(MAX_TICKS_PER_WRITE)
        more = len(ticks) == MAX_TICKS_PER_WRITE
        self._write(ticks, last=closed and not more)
        return more

    def _write(self, ticks: list[Tick], last: bool) -> None:
        self._ticks += len(ticks)
        self._sound.write(self._mixer.mix(ticks, last))
        if last:
            self._sound.finish()
            self._end_timeline()
        elif lines := self.recorder.timeline.read_lines():
            self._timeline.write(lines)

    @property
    def finished(self) -> bool:
        return self._timeline.closed

    def _end_timeline(self) -> None:
        timeline = self.recorder.timeline
        lines = timeline.read_lines()
        timeline.write(
            "end",
            self._ticks * PACKET_MS,
            missed_ms=self.recorder.missed_ms,
            lines_dropped=timeline.lines_dropped,
        )
        self._timeline.write(lines + timeline.read_lines())
        self._timeline.finish()
        seconds = self._ticks * PACKET_MS / 1000
        self._on_finished(FinishedRecording(str(self._path), seconds, self._sealed))

    def fail(self, error: Exception) -> None:
        self.recorder.error = f"{type(error).__name__}: {error}"
        self._sound.abandon()
        self._timeline.abandon()


class RecordingWriter:
    """Writes all recordings of the process into `directory`, creating it if missing.

    A recording that fails, e.g. on a full disk, ends alone: its recorder's `error` says why and the
    call continues. `on_failed` is then called from the writer's thread. A stalled disk stalls all
    recordings, each up to the limit of its queue.
    """

    def __init__(
        self,
        directory: Path,
        on_failed: Callable[[], None] = lambda: None,
        keys: Keyring | None = None,
    ) -> None:
        """With `keys` recordings are sealed."""
        self._directory, self._keys = directory, keys
        self._on_failed = on_failed
        self._opened: SimpleQueue[RecordingFiles] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def open(
        self,
        call_id: str,
        started_at: float,
        on_finished: Callable[[FinishedRecording], None] = lambda recording: None,
    ) -> Recorder:
        """Create NAME.ogg and NAME.jsonl, or sealed ones; `started_at` is seconds since 1970.
        `on_finished` is called in the writer's thread once they are complete. Raises OSError, and
        FileExistsError if the call id was recorded before. Blocks while two files are created, a
        millisecond on a local disk."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        recorder = Recorder(call_id, started_at)
        self._opened.put(RecordingFiles(self._directory, recorder, self._keys, on_finished))
        return recorder

    def path_of(self, recorder: Recorder) -> Path:
        """Returns where the sound of a recording is written."""
        return sound_path(self._directory.absolute(), recorder.call_id, self._keys)

    def close(self) -> None:
        """Finish all recordings and end the thread. Blocks on the disk, so not for the event
        loop."""
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("recordings are incomplete: the disk took over {} s", CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        recordings: list[RecordingFiles] = []
        while not self._closing.wait(WRITE_INTERVAL_S):
            self._write_round(recordings)
        self._write_round(recordings)
        for recording in recordings:
            recording.recorder.close()
        self._write_round(recordings)

    def _write_round(self, recordings: list[RecordingFiles]) -> None:
        """Write everything queued, the recordings taking turns; drop those that are done."""
        while not self._opened.empty():
            recordings.append(self._opened.get())
        waiting = list(recordings)
        while waiting:
            waiting = [recording for recording in waiting if self._write_recording(recording)]
        recordings[:] = [
            recording
            for recording in recordings
            if not recording.finished and recording.recorder.error is None
        ]

    def _write_recording(self, recording: RecordingFiles) -> bool:
        try:
            return recording.write_queued()
        # A failure of any kind must not end the recordings of other calls.
        except Exception as error:
            logger.exception("recording of call {} failed", recording.recorder.call_id)
            recording.fail(error)
            self._on_failed()
            return False
