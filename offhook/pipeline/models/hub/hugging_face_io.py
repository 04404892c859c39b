"""Models of the Hugging Face hub or a mirror of it, in the cache of `huggingface_hub`: other
programs find there what was downloaded here, and the other way round."""

import http
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from offhook.pipeline.models.hub import download_io
from offhook.pipeline.models.hub.download_io import Progress, Record, RemoteFile, Store, complete
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy

COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_PAGES = 100
"""Pages of a repository's list of files."""
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which a request may succeed later."""


def store_of(name: str, commit: str) -> Store:
    """Returns the place of a commit in the cache. Raises ImportError without `huggingface_hub`."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    repository = cache / f"models--{name.replace('/', '--')}"
    return Store(
        repository / "snapshots" / commit,
        repository / "offhook" / f"{commit}.json",
        cache / ".locks" / repository.name / "offhook.lock",
        "HF_HUB_CACHE",
        repository / "blobs",
    )


def known_store(name: str, revision: str) -> Store | None:
    """Returns where a revision is or would be cached, if its commit is known here."""
    if COMMIT.fullmatch(revision):
        return store_of(name, revision)
    try:
        return store_of(name, _ref(name, revision).read_text().strip())
    except OSError:
        return None


def _ref(name: str, revision: str) -> Path:
    """Returns the file that holds the commit of a branch or tag."""
    return store_of(name, "").folder.parent / "refs" / revision


def find(name: str, revision: str, progress: Progress, hub: str, patterns: Sequence[str]) -> Path:
    """Raises EngineError."""
    try:
        site = site_of(hub)
    except ImportError as error:
        raise EngineError(
            f"there is no folder {name}; to download it: pip install huggingface_hub"
        ) from error
    store = known_store(name, revision)
    record = Record()
    if store and COMMIT.fullmatch(revision):
        record = Record.read(store.record)
        if record.vouches_for(store, patterns):
            return store.folder
    try:
        if not (store and record.files):
            commit, files = _listing(name, revision, hub, patterns)
            store, record = store_of(name, commit), Record.of(files)
        wanted = record.wanted(name, patterns)
        complete(_Repository(name, store.folder.name, hub), store, wanted, progress, record)
    except _Refused as error:
        if folder := without_hub(name, revision, patterns):
            return folder
        raise _in_words(error.why, name, revision, site) from error.why
    if store.folder.name != revision:
        download_io.write(_ref(name, revision), store.folder.name)
    return store.folder


class _Refused(Exception):
    """Raised when the hub refuses a request or cannot be reached; `why` is the library's error."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


def _listing(
    name: str, revision: str, hub: str, patterns: Sequence[str]
) -> tuple[str, list[RemoteFile]]:
    """Returns the commit of a revision, and its files. Waits and asks again while the hub is
    overloaded and there is no cached copy. Raises _Refused."""
    retry = RetryPolicy(download_io.GIVE_UP_S, download_io.FIRST_PAUSE_S, download_io.MAX_PAUSE_S)
    for left in reversed(range(download_io.ATTEMPTS)):
        try:
            return _listing_once(name, revision, hub)
        except Exception as error:  # of httpx or requests, by the version of the hub's library
            status = status_of(error)
            failed = AttemptFailed(str(error), after_s=_retry_after(error), status=status)
            pause = retry.pause_s(failed, time.monotonic())
            if not left or status not in TRANSIENT or pause is None:
                raise _Refused(error) from error
            if without_hub(name, revision, patterns):
                raise _Refused(error) from error
            time.sleep(pause)
    raise AssertionError


def _listing_once(name: str, revision: str, hub: str) -> tuple[str, list[RemoteFile]]:
    """Raises the errors of the library."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
        validate_repo_id,
    )

    validate_repo_id(name)
    api = f"{site_of(hub)}/api/models/{name}"
    commit = revision
    if not COMMIT.fullmatch(revision):
        commit = str(_answer(f"{api}/revision/{quote(revision, safe='')}").json()["sha"])
    url = f"{api}/tree/{commit}?recursive=true"
    files: list[RemoteFile] = []
    for _ in range(MAX_PAGES):
        answer = _answer(url)
        for entry in answer.json():
            if entry["type"] == "file":
                digest = (entry.get("lfs") or entry)["oid"]
                files.append(RemoteFile(str(entry["path"]), int(entry["size"]), str(digest)))
        url = answer.links.get("next", {}).get("url", "")
        if not url:
            return commit, files
    raise ValueError(f"more than {MAX_PAGES} pages of files")


def _answer(url: str) -> Any:
    """Returns the answer to a question about a repository. Raises the errors of the library."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    answer = get_session().get(url, headers=build_hf_headers(), timeout=download_io.TIMEOUT_S)
    hf_raise_for_status(answer)
    return answer


def site_of(hub: str) -> str:
    """Returns the URL of the hub in use."""
    from huggingface_hub import constants

    return (hub or str(constants.ENDPOINT)).rstrip("/")


def bytes_of(name: str, revision: str, hub: str, patterns: Sequence[str]) -> int | None:
    """Returns the size of the files of these patterns; None if the hub cannot tell it now."""
    try:
        store = known_store(name, revision)
        files = list(Record.read(store.record).files.values()) if store else []
        if not files:
            files = _listing_once(name, revision, hub)[1]
    except Exception:  # of httpx or requests, by the version of the hub's library
        return None
    return sum(file.size for file in files if file.is_like(patterns))


def without_hub(name: str, revision: str, patterns: Sequence[str]) -> Path | None:
    """Returns the cached folder if all of it is there, as far as is known."""
    import huggingface_hub

    store = known_store(name, revision)
    if store is None:
        return None
    if Record.read(store.record).files:
        return store.folder if download_io.is_complete(store, patterns) else None
    try:  # cached by another program
        folder = Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=list(patterns), local_files_only=True
            )
        )
    except (OSError, ValueError):
        return None
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return folder if any(RemoteFile(p, 0, "").is_like(patterns) for p in names) else None


@dataclass(frozen=True)
class _Repository:
    """See `download_io.Source`."""

    name: str
    commit: str
    hub: str

    @contextmanager
    def open(self, file: RemoteFile, begin: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = f"{site_of(self.hub)}/{self.name}/resolve/{self.commit}/{quote(file.path)}"
        # Compressed bytes could not be resumed.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        with ExitStack() as stack:
            try:
                session: Any = get_session()
                how: dict[str, Any] = {"headers": headers, "timeout": download_io.TIMEOUT_S}
                if callable(session.stream):
                    response = stack.enter_context(session.stream("GET", url, **how))
                    pieces = response.iter_bytes(download_io.CHUNK_BYTES)
                else:  # requests, of the library's versions before 1.0
                    response = stack.enter_context(session.get(url, stream=True, **how))
                    pieces = response.iter_content(download_io.CHUNK_BYTES)
                if response.status_code >= http.HTTPStatus.BAD_REQUEST:
                    getattr(response, "read", int)()  # what went wrong is in the body
                hf_raise_for_status(response)
            except Exception as error:  # of httpx or requests, by the version of the hub's library
                raise _failed(error) from error
            resumed = response.status_code == http.HTTPStatus.PARTIAL_CONTENT
            yield begin if resumed else 0, _pieces(pieces)


def _pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Raises AttemptFailed."""
    while True:
        try:
            data = next(pieces, b"")
        except Exception as error:  # of httpx or requests, by the version of the hub's library
            raise AttemptFailed(f"{error!r}") from error
        if not data:
            return
        yield data


def _failed(error: Exception) -> Exception:
    """Returns what a request's failure is raised as."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = status_of(error)
    if isinstance(error, OfflineModeIsEnabled) or (status and status not in TRANSIENT):
        return _Refused(error)
    words = f"the hub answers with status {status}" if status else f"{error!r}"
    return AttemptFailed(words, after_s=_retry_after(error), status=status)


def status_of(error: BaseException | None) -> int:
    """Returns the HTTP status that an error refers to; 0 if none."""
    response = _response(error)
    return int(response.status_code) if response is not None else 0


def _response(error: BaseException | None) -> Any:
    while error is not None:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", 0):
            return response
        error = error.__cause__
    return None


def _retry_after(error: BaseException) -> float:
    """Returns the delay in s that a response asks for, if it is a number; else 0."""
    response = _response(error)
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    return float(asked) if asked.isdecimal() else 0.0


def _in_words(error: Exception, name: str, revision: str, site: str) -> EngineError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = status_of(error)
    if isinstance(error, GatedRepoError):
        return EngineError(
            f"{name} asks for its licence to be accepted: do so at {site}/{name}, and set HF_TOKEN "
            "to a token of that account"
        )
    if isinstance(error, RevisionNotFoundError):
        return EngineError(
            f"{name} has no revision {revision}: write a branch, tag or commit behind the @, or "
            "leave it out"
        )
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return EngineError(
            f"the hub has no model {name}, and there is no such folder; a private one needs "
            "HF_TOKEN"
        )
    if status in (401, 403):
        return EngineError(
            f"the hub refuses {name}: see at {site}/{name} who may have it, and set HF_TOKEN to a "
            "valid token of such an account"
        )
    words = f"it answers with status {status}" if status else " ".join(str(error).split())
    return EngineError(
        f"{name} is not on this machine, or not all of it, and the hub cannot be reached (no "
        f"network, or HF_HUB_OFFLINE is set; {site}: {words}): download it elsewhere and name its "
        "folder, or name a mirror: [engines] hub"
    )
