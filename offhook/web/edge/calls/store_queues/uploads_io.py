"""Takes recordings of calls that are over from the disk to a bucket, and deletes them there once
they are deleted from the store."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from loguru import logger

from offhook.media.sealing.files_io import locked
from offhook.media.sealing.names import SUFFIX, timeline_path
from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.http.metrics import RecordingMetrics
from offhook.web.records.bucket.client_io import Bucket
from offhook.web.records.bucket.faults import BucketFault, NotWanted
from offhook.web.records.bucket.ledger import AT_ONCE, Ledger, Removal, Upload
from offhook.web.records.bucket.places import timeline_of
from offhook.web.records.bucket.threads_io import in_own_thread
from offhook.web.records.deletion import delete_files
from offhook.web.records.store import CallStore
from offhook.web.records.writing.writer_io import report_faults

SCAN_S = 2.0
"""Interval in s at which the folder is looked through, if nothing is to be uploaded."""
SCAN_SHARE = 0.02
"""Maximum share of the time for looking through a folder, which may be large."""
SOUNDS = (".ogg", f".ogg{SUFFIX}")


@dataclass(frozen=True)
class LockedUpload:
    """A recording that is being uploaded here, and by nobody else as long as it is locked."""

    upload: Upload
    lock: FileIO


class Uploader:
    """Uploads the recordings in one folder, by what one store knows of them, and deletes what the
    store wants deleted, also of other servers' recordings."""

    def __init__(
        self, store: CallStore, bucket: Bucket, folder: Path, metrics: RecordingMetrics
    ) -> None:
        self._ledger: Ledger = store.ledger
        self._bucket, self._folder, self._metrics = bucket, folder.absolute(), metrics
        self._next_scan = 0.0
        """On the monotonic clock."""

    def start(self, queues: StoreQueues) -> None:
        queues.serve("uploads of recordings", self.claim, self.upload)
        queues.serve("deletions of recordings", self.claim_removals, self.remove)

    # --- up ---

    def claim(self, now: float) -> Sequence[LockedUpload]:
        """Returns recordings that are to be uploaded now; blocks. Raises StoreError."""
        began = time.monotonic()
        if began < self._next_scan:
            return ()
        claimed: list[LockedUpload] = []
        paths = self._in_folder()
        waiting = self._ledger.finished(paths)
        for path, call in waiting.items():
            if len(claimed) == AT_ONCE:
                break
            if (one := self._claimed(path, call, now)) is not None:
                claimed.append(one)
        self._metrics.waiting.labels("upload").set(len(waiting))
        self._delete_uploaded([path for path in paths if path not in waiting])
        if not claimed:
            ended = time.monotonic()
            self._next_scan = ended + max(SCAN_S, (ended - began) / SCAN_SHARE)
        return claimed

    def _in_folder(self) -> list[str]:
        """Returns the sounds in the folder."""
        try:
            return sorted(e.path for e in os.scandir(self._folder) if e.name.endswith(SOUNDS))
        except FileNotFoundError:
            return []

    def _claimed(self, path: str, call: str, now: float) -> LockedUpload | None:
        try:
            lock = locked(Path(path))
        except OSError as error:
            logger.bind(a_minute="upload").error("{} cannot be uploaded: {}", path, error)
            return None
        if lock is None:
            return None
        sound = self._bucket.place_of(Path(path).name)
        try:
            upload = self._ledger.claim_upload(call, path, sound, now)
        except BaseException:
            lock.close()
            raise
        if upload is None:
            lock.close()
            return None
        return LockedUpload(upload, lock)

    def _delete_uploaded(self, paths: Sequence[str]) -> None:
        """Deletes files that a process has uploaded which was killed before it deleted them."""
        sounds = {self._bucket.place_of(Path(path).name): path for path in paths}
        for sound in self._ledger.are_there(list(sounds)) if sounds else ():
            report_faults(delete_files([sounds[sound]]))

    async def upload(self, locked_upload: LockedUpload) -> None:
        """Uploads a recording, and deletes its files once the store says where it lies. Raises
        StoreError."""
        await in_own_thread("upload", self._upload_and_unlock, locked_upload)

    def _upload_and_unlock(self, locked_upload: LockedUpload) -> None:
        with locked_upload.lock:
            self._upload(locked_upload.upload)

    def _upload(self, upload: Upload) -> None:
        try:
            self._to_bucket(upload)
        except NotWanted:
            self._ledger.failed(upload, "", time.time())
            return
        except OSError as error:
            self._ledger.failed(upload, str(error), time.time())
            if not isinstance(error, BucketFault) or upload.attempts:  # the first is said already
                line = logger.bind(a_minute="upload")
                line.warning("{}: its recording is uploaded later: {}", upload.call, error)
            return
        if self._ledger.finish(upload, time.time()):
            report_faults(delete_files([upload.path]))
            self._metrics.uploaded.inc()
            logger.info("{}: its recording is at {}", upload.call, upload.sound)

    def _to_bucket(self, upload: Upload) -> None:
        """Uploads the timeline, then the sound. Raises NotWanted and OSError."""

        def is_wanted() -> bool:
            return self._ledger.go_on(upload, time.time())

        sound = Path(upload.path)
        with suppress(FileNotFoundError):
            self._bucket.upload(timeline_path(sound), timeline_of(upload.sound), is_wanted)
        self._bucket.upload(sound, upload.sound, is_wanted)

    # --- away ---

    def claim_removals(self, now: float) -> Sequence[Removal]:
        """Returns recordings that are to be deleted now; blocks. Raises StoreError."""
        self._metrics.waiting.labels("deletion").set(self._ledger.waiting())
        return self._ledger.claim_removals(now)

    async def remove(self, removal: Removal) -> None:
        """Deletes a recording from its bucket. Raises StoreError."""
        await in_own_thread("deletion", self._remove, removal)

    def _remove(self, removal: Removal) -> None:
        try:
            self._bucket.remove(removal.sound)
        except BucketFault as fault:
            self._ledger.removal_failed(removal, str(fault), time.time())
            line = logger.bind(a_minute="deletion")
            line.warning("{} is deleted later: {}", removal.sound, fault)
            return
        self._ledger.removed(removal)
        logger.info("deleted: {}", removal.sound)
