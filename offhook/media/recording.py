"""Recording of one call: one tick counts both directions, so they never drift apart.

A tick of the packet clock gives 20 ms received and 20 ms sent. The Recorder queues both unchanged;
a writer (`recording_io`) reads them from another thread, brings them to one rate with `StereoMixer`
and writes stereo Ogg Opus, caller left and agent right. The Timeline records events in the same
milliseconds.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import soxr

from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm

RECORDING_RATE = RATE_OUT
"""Hz of both channels in the file."""
QUEUE_MS = 10_000
"""Maximum audio in ms queued while the disk stalls, about 1 MB per call. When the queue is full the
recording continues as silence of the same length, `missed_ms` counts it and the timeline names the
gap; recording resumes once half the queue is written."""
QUEUE_TICKS = QUEUE_MS // PACKET_MS
"""The same in ticks."""
TIMELINE_LINES = 2000
"""Lines queued while the disk stalls; further ones are dropped and counted in `lines_dropped`."""
TIMELINE_VERSION = 1
"""Version of the timeline's format, in its header."""
MAX_NAME_CHARS = 100
"""Maximum length of a recording's name; the rest of the call's id is cut off."""

Tick = tuple[Pcm, Pcm]
"""20 ms: int16[320] received at 16 kHz, int16[480] sent at 24 kHz."""

SENT_SILENCE = np.zeros(SAMPLES_OUT, np.int16)
SILENCE: Tick = np.zeros(SAMPLES_IN, np.int16), SENT_SILENCE


def recording_name(call_id: str) -> str:
    """Return a file name without directory or suffix. A call id of letters, digits and `._-` is its
    own name; any other is reduced to these and made unique by `~` and a hash."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", call_id)[:MAX_NAME_CHARS].lstrip(".-")
    if name == call_id != "":
        return name
    digest = hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{name}~{digest}"


class Timeline:
    """The events of a call, one JSON object per line: `at_ms` in the recording's time, `kind`, and
    the fields of that kind. The first line has kind `header`, the last `end`."""

    def __init__(self, call_id: str, started_at: float) -> None:
        self.lines_dropped = 0
        self._lines: deque[str] = deque()
        self.write(
            "header",
            0,
            version=TIMELINE_VERSION,
            call_id=call_id,
            started_at=datetime.fromtimestamp(started_at, UTC).isoformat(timespec="milliseconds"),
            sample_rate=RECORDING_RATE,
            heard_rate=RATE_IN,
            said_rate=RATE_OUT,
            tick_ms=PACKET_MS,
            channels=["caller", "agent"],
        )

    def write(self, kind: str, at_ms: int, **fields: object) -> None:
        """Add a line; takes microseconds. Raises TypeError for a field JSON cannot represent."""
        if len(self._lines) >= TIMELINE_LINES:
            self.lines_dropped += 1
            return
        record = {"at_ms": at_ms, "kind": kind, **fields}
        self._lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")))

    def read_lines(self) -> bytes:
        """Return all lines not yet read, as UTF-8. For the writer's thread."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return "".join(line + "\n" for line in lines).encode(errors="backslashreplace")


class Recorder:
    """The recording as the call sees it, on the event loop. `started_at` is seconds since 1970.

    One thread ticks and another reads; they share only deques, whose appends and pops are atomic.
    """

    def __init__(self, call_id: str, started_at: float) -> None:
        self.call_id = call_id
        self.timeline = Timeline(call_id, started_at)
        self.closed = False
        self.error: str | None = None
        """Why the rest of the call is not recorded, set by the writer; None without an error."""
        self.missed_ms = 0
        """Audio lost to a full queue and recorded as silence, in ms."""
        self._ticks = 0
        self._paused = False
        # Ticks, interleaved with the lengths of gaps in ticks.
        self._queue: deque[Tick | int] = deque()
        self._gap = 0
        self._gap_left = 0

    @property
    def now_ms(self) -> int:
        """Length of the recording so far, in ms: the timeline's current time."""
        return self._ticks * PACKET_MS

    def tick(self, heard: Pcm, said: Pcm | None) -> None:
        """Record 20 ms: int16[320] received, int16[480] sent or None for silence. The arrays are
        kept by reference and must not be changed afterwards."""
        limit = QUEUE_TICKS // 2 if self._gap else QUEUE_TICKS
        if len(self._queue) >= limit:
            self._gap += 1
            self.missed_ms += PACKET_MS
        else:
            self._end_gap()
            if self._paused:
                self._queue.append(SILENCE)
            else:
                self._queue.append((heard, SENT_SILENCE if said is None else said))
        self._ticks += 1

    def _end_gap(self) -> None:
        if self._gap:
            self._queue.append(self._gap)
            length_ms = self._gap * PACKET_MS
            self.timeline.write("gap", self.now_ms - length_ms, length_ms=length_ms)
            self._gap = 0

    def pause(self) -> None:
        """Record silence on both channels from the next tick on, e.g. for card numbers."""
        if not self._paused:
            self._paused = True
            self.timeline.write("pause", self.now_ms)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.timeline.write("resume", self.now_ms)

    def close(self) -> None:
        """End the recording: the writer finishes the files. No tick may follow."""
        self._end_gap()
        self.closed = True

    def read_ticks(self, limit: int) -> list[Tick]:
        """Return up to `limit` unread ticks, gaps filled with silence. For the writer's thread."""
        ticks: list[Tick] = []
        while len(ticks) < limit:
            if self._gap_left:
                self._gap_left -= 1
                ticks.append(SILENCE)
                continue
            if not self._queue:
                break
            entry = self._queue.popleft()
            if isinstance(entry, int):
                self._gap_left = entry
            else:
                ticks.append(entry)
        return ticks


class StereoMixer:
    """Mixes ticks to interleaved stereo at 24 kHz, caller left, agent right."""

    def __init__(self) -> None:
        # soxr gives its first sample late but not shifted, so the sent audio only has to wait for
        # it. With int16 it would add dither, and silence would neither stay silent nor compress
        # well.
        self._resampler = soxr.ResampleStream(RATE_IN, RECORDING_RATE, 1, "float32", "HQ")
        self._said = np.empty(0, np.int16)

    def mix(self, ticks: Sequence[Tick], last: bool = False) -> Pcm:
        """Return int16[2 * n], left and right interleaved. n may be up to 30 ms less than the ticks
        given, until `last` flushes the rest."""
        heard = np.concatenate([np.empty(0, np.int16), *(tick[0] for tick in ticks)])
        left = self._resampler.resample_chunk(heard.astype(np.float32), last)
        said = np.concatenate([self._said, *(tick[1] for tick in ticks)])
        stereo = np.empty((len(left), 2), np.int16)
        stereo[:, 0] = np.clip(np.rint(left), -32768, 32767)
        stereo[:, 1] = said[: len(left)]
        self._said = said[len(left) :]
        return stereo.reshape(-1)
