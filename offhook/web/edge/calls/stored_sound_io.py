"""The sound of a recording, wherever it lies."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from offhook.media.sealing.files_io import LocalFile, Source, StoredFile
from offhook.web.config.server import Recording
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.records.bucket.client_io import BucketFile
from offhook.web.records.bucket.places import in_bucket
from offhook.web.records.bucket.threads_io import in_own_thread

T = TypeVar("T")


class Sound:
    """A recording that is played, wherever it lies. Methods raise what `StoredFile` raises."""

    def __init__(self, place: str, recording: Recording, records: CallRecords) -> None:
        self.place = place
        self._recording, self._records = recording, records

    async def open(self) -> StoredFile:
        """Raises ValueError, too: of the keys, and without a bucket."""
        return await self._in_thread(self._opened)

    async def read(self, stored: StoredFile, start: int, stop: int) -> bytes:
        return await self._in_thread(stored.read, start, stop)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        if not in_bucket(self.place):
            return await asyncio.to_thread(work, *arguments)
        async with self._records.fetching:
            return await in_own_thread("bucket", work, *arguments)

    def _opened(self) -> StoredFile:
        source: Source
        if not in_bucket(self.place):
            source = LocalFile(Path(self.place))
        elif self._records.bucket is None:
            raise ValueError("it is in a bucket, and none is configured: see [s3]")
        else:
            source = BucketFile(self._records.bucket, self.place)
        return StoredFile(source, self._recording.keyring())
