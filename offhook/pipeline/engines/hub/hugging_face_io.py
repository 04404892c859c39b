"""Models of the Hugging Face hub or a mirror of it, in the cache of `huggingface_hub`: other
programs find there what was downloaded here, and the other way round."""

import http
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from loguru import logger

from offhook.media.untrusted_json import read_json
from offhook.pipeline.engines.hub import download_io
from offhook.pipeline.engines.hub.download_io import Progress, Record, RemoteFile, Store, complete
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy

COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_PAGES = 100
"""Pages of a repository's list of files; a longer list is refused."""
INSECURE = "insecure+"
"""What the URL of a mirror without encryption begins with in the configuration: who writes it
accepts that anybody on the way can exchange models."""
LOOPBACK = re.compile(r"http://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?(/.*)?")
"""Hubs of this machine, which need no encryption."""
REDIRECTS = (301, 302, 303, 307, 308)
READ_BYTES = 1 << 14
NO_HEADERS: Mapping[str, str] = {}
MAX_WORDS = 500
"""Characters of an error's words that are passed on; the rest is left out."""
BAD_TOKEN = "Invalid credentials in Authorization header"
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
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = _ref(name, revision).read_text().strip()
        except (OSError, ValueError):
            return None
    return store_of(name, commit) if COMMIT.fullmatch(commit) else None


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
            commit, files = _listing(name, revision, site, patterns)
            store, record = store_of(name, commit), Record.of(name, files)
        wanted = record.wanted(name, patterns)
        complete(_Repository(name, store.folder.name, site), store, wanted, progress, record)
    except _Refused as error:
        if folder := without_hub(name, revision, patterns):
            if isinstance(error.why, EngineError):
                logger.warning("{}: what is here of {} will do", error.why, name)
            return folder
        raise _in_words(error.why, name, revision, site) from error.why
    if store.folder.name != revision:
        download_io.write(_ref(name, revision), store.folder.name)
    return store.folder


def check(name: str, revision: str, hub: str) -> None:
    """Raises EngineError if nothing of a model is cached, and the hub does not have it or cannot be
    reached."""
    try:
        site = site_of(hub)
    except ImportError:  # which `find` reports
        return
    store = known_store(name, revision)
    if store is not None and store.folder.exists():
        return
    try:
        _listing(name, revision, site, ())
    except _Refused as error:
        raise _in_words(error.why, name, revision, site) from error.why


class _Refused(Exception):
    """Raised when the hub refuses a request, cannot be reached or cannot be trusted; `why` is a
    _Status, an error of the library, or an EngineError."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _Status(Exception):
    """Raised for an answer of the hub that is an error."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"the hub answers with status {status}")
        self.status = status
        self.code = headers.get("X-Error-Code", "")
        self.said = headers.get("X-Error-Message", "")
        asked = headers.get("Retry-After", "")
        self.after_s = float(asked) if asked.isdecimal() else 0.0
        """Delay in s that the hub asks for, if it is a number; else 0."""


def _untrue(site: str, what: str) -> EngineError:
    return EngineError(f"{site} {what}: do not trust this hub, mirror or proxy")


def _listing(
    name: str, revision: str, site: str, patterns: Sequence[str]
) -> tuple[str, list[RemoteFile]]:
    """Returns the commit of a revision, and its files. Waits and asks again while the hub is
    overloaded and there is no cached copy. Raises _Refused."""
    from huggingface_hub.errors import HFValidationError

    retry = RetryPolicy(download_io.GIVE_UP_S, download_io.FIRST_PAUSE_S, download_io.MAX_PAUSE_S)
    for left in reversed(range(download_io.ATTEMPTS)):
        try:
            return _listing_once(name, revision, site)
        except _Status as error:
            failed = AttemptFailed(str(error), after_s=error.after_s, status=error.status)
            pause = retry.pause_s(failed, time.monotonic())
            if not left or error.status not in TRANSIENT or pause is None:
                raise _Refused(error) from error
            if without_hub(name, revision, patterns):
                raise _Refused(error) from error
            time.sleep(pause)
        except Exception as error:  # of httpx or requests, by the version of the hub's library
            lies = isinstance(error, download_io.NO_LISTING) and not isinstance(
                error, HFValidationError
            )
            why = _untrue(site, f"answers what is no list of files ({error!r:.200})")
            raise _Refused(why if lies else error) from error
    raise AssertionError


def _listing_once(name: str, revision: str, site: str) -> tuple[str, list[RemoteFile]]:
    """Raises _Status, EngineError, and the errors of the library."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
        validate_repo_id,
    )

    validate_repo_id(name)
    api = f"{site}/api/models/{name}"
    commit = revision
    if not COMMIT.fullmatch(revision):
        told, _ = _answer(f"{api}/revision/{quote(revision, safe='')}", site)
        commit = str(told["sha"])
        if not COMMIT.fullmatch(commit):
            raise _untrue(site, f"tells a commit that is none: {commit[:100]!a}")
    url = f"{api}/tree/{commit}?recursive=true"
    files: list[RemoteFile] = []
    for _ in range(MAX_PAGES):
        told, following = _answer(url, site)
        for entry in told:
            if entry["type"] == "file":
                digest = (entry.get("lfs") or entry)["oid"]
                if not digest:
                    raise _untrue(site, "lists a file without its hash")
                files.append(RemoteFile(str(entry["path"]), int(entry["size"]), str(digest)))
        if len(files) > download_io.MAX_FILES:
            break
        if not following:
            return commit, files
        url = urljoin(url, following)
        if not url.startswith(f"{site}/"):
            raise _untrue(site, f"continues its list of files elsewhere: {url[:200]!a}")
    raise _untrue(site, f"lists more than {download_io.MAX_FILES} files or {MAX_PAGES} pages")


def _answer(url: str, site: str) -> tuple[Any, str]:
    """Returns the answer to a question about a repository, and the URL that it links to as its next
    page, if any. Raises like `_opened`, and ValueError, EngineError, TimeoutError."""
    with _opened(url, site) as response:
        # httpx gives pieces as they come, unless it is told a size
        streams = hasattr(response, "iter_bytes")
        pieces = response.iter_bytes() if streams else response.iter_content(READ_BYTES)
        told = read_json(download_io.whole(pieces))
        return told, str(response.links.get("next", {}).get("url", ""))


@contextmanager
def _opened(url: str, site: str, headers: Mapping[str, str] = NO_HEADERS) -> Iterator[Any]:
    """Requests a URL of a hub, and yields the response when its body begins. Redirects may lead to
    other hosts, which store the files: the token goes to the hub only, and never without
    encryption. (`huggingface_hub` would send it wherever the list of files is said to go on.)
    Raises _Status, EngineError, and the errors of the library."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
        build_hf_headers,
    )

    for _ in range(download_io.MAX_REDIRECTS + 1):
        trusted = url.startswith(f"{site}/") and is_secure(site)
        sent = build_hf_headers(token=None if trusted else False)
        # Compressed bytes could not be resumed, nor measured.
        with _requested(url, {**sent, "Accept-Encoding": "identity", **headers}) as response:
            status, location = int(response.status_code), response.headers.get("Location", "")
            if status in REDIRECTS and location:
                url = urljoin(url, location)
                if not download_io.may_lead(site, url):
                    raise _untrue(site, f"leads to where nothing is encrypted: {url[:200]!a}")
                continue
            if status not in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
                raise _Status(status, response.headers)
            if (coding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise _untrue(site, f"compresses what was to come as it is ({coding[:40]!a})")
            yield response
            return
    raise _untrue(site, f"leads on more than {download_io.MAX_REDIRECTS} times")


def _requested(url: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it exports lazily
        get_session,
    )

    session: Any = get_session()
    how: dict[str, Any] = {"headers": headers, "timeout": download_io.TIMEOUT_S}
    requested: AbstractContextManager[Any]
    if callable(session.stream):
        requested = session.stream("GET", url, follow_redirects=False, **how)
    else:  # requests, of the library's versions before 1.0
        requested = session.get(url, stream=True, allow_redirects=False, **how)
    return requested


def is_secure(site: str) -> bool:
    """Whether nobody on the way to a hub can read what is sent or change what comes."""
    return site.startswith("https://") or bool(LOOPBACK.fullmatch(site))


def site_of(hub: str) -> str:
    """Returns the URL of the hub in use. Raises EngineError for one without encryption, unless the
    configuration accepts that."""
    from huggingface_hub import constants

    site = (hub or str(constants.ENDPOINT)).rstrip("/")
    accepted = site.startswith(INSECURE)
    site = site.removeprefix(INSECURE)
    if not accepted and not is_secure(site):
        raise EngineError(
            f"the hub {site} is not encrypted, so anybody on the way could exchange the models: "
            f'use https://, or accept that with [engines] hub = "{INSECURE}{site}"'
        )
    return site


def bytes_of(name: str, revision: str, hub: str, patterns: Sequence[str]) -> int | None:
    """Returns the size of the files of these patterns; None if the hub cannot tell it now."""
    try:
        store = known_store(name, revision)
        files = list(Record.read(store.record).files.values()) if store else []
        if not files:
            files = _listing_once(name, revision, site_of(hub))[1]
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
    site: str

    @contextmanager
    def open(self, file: RemoteFile, begin: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        url = f"{self.site}/{self.name}/resolve/{self.commit}/{quote(file.path)}"
        with ExitStack() as stack:
            try:
                part = {"Range": f"bytes={begin}-"} if begin else NO_HEADERS
                response = stack.enter_context(_opened(url, self.site, part))
            except EngineError:
                raise
            except Exception as error:  # of httpx or requests, by the library's version
                raise _failed(error) from error
            pieces_of = getattr(response, "iter_bytes", None) or response.iter_content
            resumed = response.status_code == http.HTTPStatus.PARTIAL_CONTENT
            yield begin if resumed else 0, _pieces(pieces_of(download_io.CHUNK_BYTES))


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

    if isinstance(error, _Status) and error.status in TRANSIENT:
        return AttemptFailed(str(error), after_s=error.after_s, status=error.status)
    if isinstance(error, _Status | OfflineModeIsEnabled):
        return _Refused(error)
    return AttemptFailed(f"{error!r}")


def _in_words(error: Exception, name: str, revision: str, site: str) -> EngineError:
    from huggingface_hub.errors import HFValidationError

    if isinstance(error, EngineError):
        return error
    status, code, said = 0, "", ""
    if isinstance(error, _Status):
        status, code, said = error.status, error.code, error.said
    if code == "GatedRepo":
        return EngineError(
            f"{name} asks for its licence to be accepted: do so at {site}/{name}, and set HF_TOKEN "
            "to a token of that account"
        )
    if code == "RevisionNotFound":
        return EngineError(
            f"{name} has no revision {revision}: write a branch, tag or commit behind the @, or "
            "leave it out"
        )
    # The hub says 401 also of what there is not.
    unknown = code == "RepoNotFound" or (status == 401 and said != BAD_TOKEN)
    if unknown or isinstance(error, HFValidationError):
        return EngineError(
            f"the hub has no model {name}, and there is no such folder; a private one needs "
            "HF_TOKEN"
        )
    if status in (401, 403):
        return EngineError(
            f"the hub refuses {name}: see at {site}/{name} who may have it, and set HF_TOKEN to a "
            "valid token of such an account"
        )
    if status:
        return EngineError(
            f"{name} is not on this machine, or not all of it, and the hub answers with status "
            f"{status} ({site}): try again later, or name a mirror: [engines] hub"
        )
    words = " ".join(str(error).split())
    return EngineError(
        f"{name} is not on this machine, or not all of it, and the hub cannot be reached (no "
        f"network, or HF_HUB_OFFLINE is set; {site}: {words[:MAX_WORDS]}): download it elsewhere "
        "and name its folder and its engine, or name a mirror: [engines] hub",
        "unreachable",
    )
