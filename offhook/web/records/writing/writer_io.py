"""Writes what calls do into the store: from a queue, in a thread, so that no packet waits for it.

    calls -> queue -> store
                 \\-> spool, a file, while the store cannot be written to -> store

The spool is read when the store is there again, also by the next process that starts. Entries can
come twice, which the store does not mind, and are lost only if the process is killed within
WRITE_S, or if there is no room for them on the disk either.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from loguru import logger

from offhook.web.records.deletion import Forgotten, delete_files
from offhook.web.records.entries import Entry
from offhook.web.records.errors import EntryError, StoreError
from offhook.web.records.store import CallStore, Writer, rehearse
from offhook.web.records.writing.spool import entries_of, lines_of
from offhook.web.records.writing.spool_file_io import SpoolFile

WRITE_S = 0.2
"""Interval in s at which what has happened is written."""
AT_ONCE = 200
"""Entries of one transaction."""
SEEN_S = 10.0
"""Interval in s at which a process says that it is there."""
UNSEEN_S = 60.0
"""Time in s after which a process that has said nothing is gone, and its calls are over."""
RETRY_S, RETRY_MAX_S = 1.0, 30.0
"""Delay in s before the store is tried again; it doubles each time up to the maximum."""
GONE = 0
"""Number, as no process of a server has it, of all that have left a spool."""
MAX_WAITING = 100_000
"""Entries in memory; beyond it, the oldest are lost. That takes a full disk beside a store that is
gone."""
EXPIRE_S = 3600.0
"""Interval in s at which what is too old is deleted."""
CLOSE_S = 10.0
"""Time limit in s for what waits when the process ends; the rest stays in the spool."""

WEBHOOKS_S = 30 * 86_400.0
"""Time in s after which webhooks that were given up are deleted."""


class StoreWriter:
    """The queue of one process, and the thread that empties it."""

    def __init__(
        self,
        store: CallStore,
        writer: Writer,
        spool: Path,
        *,
        words: bool,
        keep_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
        on_lost: Callable[[int], None] = lambda number: None,
        on_written: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`spool` is the folder of the spools. `words` says whether words are kept. `keep_s` is for
        how long calls, their words and their recordings are kept, 0 for ever. `on_lost` and
        `on_written` are told numbers of entries."""
        self.store = store
        self.words = words
        self.writer = writer
        self._folder = spool
        self._spool: SpoolFile | None = None
        self._keep_s = keep_s
        self._on_lost, self._on_written = on_lost, on_written
        self._waiting: deque[Entry] = deque()
        self._batch: list[Entry] = []
        """Taken from these, and not written yet."""
        self._retry_s = RETRY_S
        self._spooled = 0
        """Entries in our spool."""
        self._failing = False
        self.ready = False
        """Whether the tables are there."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Takes an entry; never waits."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._on_lost(1)
        self._waiting.append(entry)

    def close(self) -> None:
        """Writes what waits, within CLOSE_S. Blocks."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    @property
    def behind(self) -> int:
        """Returns how many entries are not in the store yet."""
        return len(self._batch) + len(self._waiting) + self._spooled

    # --- the thread ---

    def _run(self) -> None:
        next_try = next_seen = next_expiry = 0.0
        while True:
            ends = self._stop.wait(WRITE_S)
            now = time.monotonic()
            if now < next_try and not ends:
                self._to_spool()
                continue
            try:
                if not self.ready:
                    self._prepare()
                    self.ready = True
                self._replay()
                self._write_waiting()
                if now >= next_seen:
                    self.store.seen(self.writer, time.time())
                    self.store.close_lost(time.time(), UNSEEN_S)
                    next_seen = now + SEEN_S
                if now >= next_expiry and not ends:
                    self._expire()
                    next_expiry = now + EXPIRE_S
                self._is_there()
            except StoreError as error:
                next_try = time.monotonic() + self._failed(error)
                self._to_spool()
            except Exception:
                logger.exception("calls are not kept")
                next_try = now + RETRY_MAX_S
            if ends:
                self._to_spool()
                if self._spool is not None:
                    self._spool.close()  # for the next process
                return

    def _prepare(self) -> None:
        self.store.prepare()
        rehearse(self.store, self.writer)
        now = time.time()
        lost = self.store.close_lost(now, UNSEEN_S, self.writer)
        self.store.seen(self.writer, now)
        if lost:
            logger.warning(
                "{} calls were in progress when the server stopped: {}{}",
                *(len(lost), ", ".join(lost[:5]), " …" if len(lost) > 5 else ""),
            )

    def _write_waiting(self) -> None:
        while self._batch or self._waiting:
            self._fill_batch(AT_ONCE)
            self._write(self._batch, self.writer)
            self._batch.clear()

    def _write(self, entries: Sequence[Entry], writer: Writer) -> None:
        """Writes entries. One that the database refuses is left out, and holds up no other."""
        try:
            self.store.write(entries, writer, time.time())
        except EntryError as error:
            if len(entries) > 1:
                for entry in entries:
                    self._write([entry], writer)
                return
            logger.bind(a_minute="entry").error("an entry of a call is lost: {}", error)
            self._on_lost(1)
        else:
            self._on_written(len(entries))

    def _fill_batch(self, most: int) -> None:
        """Fills the batch from the queue, which others append to meanwhile."""
        while self._waiting and len(self._batch) < most:
            self._batch.append(self._waiting.popleft())

    # --- the spool ---

    def _to_spool(self) -> None:
        """Moves what waits to the disk, if it can."""
        self._fill_batch(MAX_WAITING)
        if not self._batch:
            return
        try:
            if self._spool is None:
                self._spool = SpoolFile.create(self._folder)
            self._spool.append(lines_of(self._batch))
        except OSError as error:
            logger.bind(a_minute="spool").error(
                "{} entries of calls are kept in memory only: {}", len(self._batch), error
            )
            return
        self._spooled += len(self._batch)
        self._batch.clear()

    def _replay(self) -> None:
        """Writes what spools have: those of processes that are gone, whose calls are over then, and
        ours."""
        gone = Writer(self.writer.server, GONE)
        for spool in SpoolFile.left_in(self._folder):
            self.store.seen(gone, 0.0)
            self._write_spool(spool, gone)
            self.store.close_lost(time.time(), UNSEEN_S)
        if self._spool is not None:
            self._write_spool(self._spool, self.writer)
            self._spool, self._spooled = None, 0

    def _write_spool(self, spool: SpoolFile, writer: Writer) -> None:
        entries = list(entries_of(spool.read()))
        for start in range(0, len(entries), AT_ONCE):
            self._write(entries[start : start + AT_ONCE], writer)
        spool.delete()

    # --- what is told ---

    def _failed(self, error: StoreError) -> float:
        """Returns after how many seconds the store is tried again."""
        if not self._failing:
            self._failing = True
            logger.error("calls cannot be kept, and wait in {} meanwhile: {}", self._folder, error)
        delay, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return delay

    def _is_there(self) -> None:
        self._retry_s = RETRY_S
        if self._failing:
            self._failing = False
            logger.info("calls are kept again: all that waited is in {}", self.store.place)

    def _expire(self) -> None:
        now = time.time()
        calls_s, words_s, recordings_s = self._keep_s
        found: list[tuple[str, Forgotten]] = []
        deletion = self.store.deletion
        if recordings_s:
            found.append(("recordings", deletion.expire_recordings(now - recordings_s, now)))
        if words_s:
            found.append(("words", deletion.expire_words(now - words_s, now)))
        if calls_s:
            found.append(("calls", deletion.expire_calls(now - calls_s, now)))
        self.store.outbox.expire(now - WEBHOOKS_S)
        self.store.analyses.expire(now)
        if words_s:
            self.store.campaigns.expire(now - words_s)
        deleted = [(what, one.calls) for what, one in found if one.calls]
        report_faults(delete_files([path for _, one in found for path in one.recordings]))
        if deleted:
            deletion.erase()
            words = ", ".join(f"{what} of {number} calls" for what, number in deleted)
            logger.info("deleted, since they were old enough: {}", words)


def report_faults(faults: Sequence[str]) -> None:
    """Tells which recordings could not be deleted."""
    for fault in faults[:5]:
        logger.error("a recording could not be deleted: {}", fault)
