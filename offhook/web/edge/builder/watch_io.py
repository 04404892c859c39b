"""Reloads the configuration when a file of it changes: `offhook serve --dev`."""

import asyncio
import importlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import ModuleType

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.web.edge.builder.named_files import named_files, own_modules

POLL_S = 0.5
"""Time in s between two looks at the files. What has changed is read once it has stayed the same
from one look to the next: editors write in pieces."""
MAX_BYTES = 10_000_000
"""Maximum size of a configuration that is looked at for the files that it names."""

Signature = tuple[int, int, int]
"""Of a file: when it was changed in ns, its size in bytes, its number."""


class NamedFiles:
    """A configuration's file, and those that it names."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder = Path.cwd()
        self._named: set[Path] = set()
        self._seen: Signature | None = None

    def look(self) -> dict[Path, Signature | None]:
        """Returns the files and their signatures; None for one that is not there."""
        seen = _signature(self._file)
        if seen != self._seen:
            self._named = self._read() if seen is not None else self._named
            self._seen = seen
        modules = {Path(str(one.__file__)) for one in own_modules(self._folder).values()}
        there = {self._file.absolute(), *self._named, *modules}
        return {path: _signature(path) for path in sorted(there)}

    def _read(self) -> set[Path]:
        try:
            with self._file.open("rb") as opened:
                text = opened.read(MAX_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return self._named
        return named_files(text, self._folder)

    def shown(self, path: Path) -> str:
        """Returns a path as people call it."""
        is_here = path.is_relative_to(self._folder)
        return str(path.relative_to(self._folder) if is_here else path)


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@asynccontextmanager
async def watching(file: Path, reload: Callable[[], bool]) -> AsyncIterator[None]:
    """Calls `reload`, which says whether it has used what was read, each time that a file has
    changed. Python modules of the folder are imported anew."""
    files = NamedFiles(file)
    known = await asyncio.to_thread(files.look)
    tasks = TaskSet()
    tasks.spawn(_watch(files, known, reload), "watch files")
    logger.info("--dev: a change of {} is used from the next call on", _listed(files, known))
    try:
        yield
    finally:
        await tasks.close()


def _listed(files: NamedFiles, known: Mapping[Path, Signature | None]) -> str:
    return ", ".join(files.shown(path) for path, there in known.items() if there is not None)


async def _watch(
    files: NamedFiles, known: Mapping[Path, Signature | None], reload: Callable[[], bool]
) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        now = await asyncio.to_thread(files.look)
        if now == known:
            continue
        while True:
            await asyncio.sleep(POLL_S)
            later = await asyncio.to_thread(files.look)
            if later == now:
                break
            now = later
        if changed := [path for path in now if path in known and now[path] != known[path]]:
            logger.info("{}: changed", ", ".join(map(files.shown, changed)))
            with modules_anew(changed) as used:
                used.append(reload())
        there = await asyncio.to_thread(files.look)  # modules may have been imported
        known = {path: now.get(path, signature) for path, signature in there.items()}


@contextmanager
def modules_anew(changed: Collection[Path]) -> Iterator[list[bool]]:
    """Has modules of this folder imported anew inside if one of them has changed, and takes the old
    ones back unless what is inside adds true."""
    used: list[bool] = []
    before: dict[str, ModuleType] = {}
    if any(path.suffix == ".py" for path in changed):
        before = own_modules(Path.cwd())
        for name in before:
            del sys.modules[name]
        for path in changed:  # bytecode is as old as its source to the second
            with suppress(OSError):
                os.unlink(importlib.util.cache_from_source(str(path)))
        importlib.invalidate_caches()
    yield used
    if not any(used):
        sys.modules.update(before)
