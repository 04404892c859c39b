"""What of a model lies in the cache, and its removal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offhook.pipeline.engines.hub import download_io, hugging_face_io, modelscope_io
from offhook.pipeline.engines.hub.download_io import Record, RemoteFile, Store
from offhook.pipeline.speech.errors import EngineError


@dataclass(frozen=True)
class Presence:
    bytes: int = 0
    """On the disk, of parts too."""
    complete: bool = False
    folder: Path | None = None


def presence(name: str, revision: str, modelscope: bool, patterns: Sequence[str]) -> Presence:
    """Returns what is here of a repository's files, without asking the hub or reading them."""
    try:
        store = store_of(name, revision, modelscope)
    except ImportError:
        return Presence()
    if store is None:
        return Presence()
    record = Record.read(store.record)
    if record.files:
        wanted = [file for file in record.files.values() if file.is_like(patterns)]
        done = download_io.seen(store, wanted)[0] if wanted else 0
        return Presence(done, record.vouches_for(store, patterns), store.folder)
    found = sum(path.stat().st_size for path in _files(store, patterns))  # of another program
    complete = bool(
        found and not modelscope and hugging_face_io.without_hub(name, revision, patterns)
    )
    return Presence(found, complete, store.folder)


def remove(name: str, revision: str, modelscope: bool, patterns: Sequence[str]) -> int:
    """Removes the files of these patterns, and parts of them; returns the bytes that are free
    again. Contents that other revisions or files share stay. Raises EngineError."""
    store = store_of(name, revision, modelscope)
    if store is None:
        return 0

    def refuse() -> None:
        raise EngineError(f"{name} is being downloaded by another process: stop that first")

    try:
        with download_io.locked(store, refuse):
            record = Record.read(store.record)
            freed = _remove_parts(store, record, patterns)
            if modelscope:
                freed += _remove_files(store, patterns)
            else:
                freed += _remove_from_hub_cache(name, store, patterns)
            if store.record.is_file():
                left = {p: at for p, at in record.checked.items() if (store.folder / p).is_file()}
                if left:
                    Record(record.files, left).write(store.record)
                else:
                    store.record.unlink()
    except OSError as error:
        raise EngineError(f"{name} could not be removed: {error}") from error
    return freed


def store_of(name: str, revision: str, modelscope: bool) -> Store | None:
    if modelscope:
        return modelscope_io.store_of(name, revision)
    return hugging_face_io.known_store(name, revision)


def _files(store: Store, patterns: Sequence[str]) -> list[Path]:
    return [
        path
        for path in store.folder.rglob("*")
        if path.is_file() and _is_like(store, path, patterns)
    ]


def _is_like(store: Store, path: Path, patterns: Sequence[str]) -> bool:
    return RemoteFile(path.relative_to(store.folder).as_posix(), 0, "").is_like(patterns)


def _remove_parts(store: Store, record: Record, patterns: Sequence[str]) -> int:
    freed = 0
    for file in record.files.values():
        part = download_io.part_of(store, file)
        if file.is_like(patterns) and part.is_file():
            freed += part.stat().st_size
            part.unlink()
    return freed


def _remove_files(store: Store, patterns: Sequence[str]) -> int:
    freed = 0
    for path in _files(store, patterns):
        freed += path.stat().st_size
        path.unlink()
    return freed


def _remove_from_hub_cache(name: str, store: Store, patterns: Sequence[str]) -> int:
    from huggingface_hub import scan_cache_dir

    commit, repository = store.folder.name, store.folder.parent.parent
    cache = scan_cache_dir(repository.parent)
    kept = [repo for repo in cache.repos if repo.repo_type == "model" and repo.repo_id == name]
    for revision in (r for repo in kept for r in repo.revisions if r.commit_hash == commit):
        place = Store(revision.snapshot_path, store.record, store.lock, store.variable)
        ours = [file for file in revision.files if _is_like(place, file.file_path, patterns)]
        whole = len(ours) == len(revision.files)
        removal = cache.delete_revisions(commit) if whole else cache.delete_files(*ours)
        removal.execute()
        return int(removal.expected_freed_size)
    return 0
