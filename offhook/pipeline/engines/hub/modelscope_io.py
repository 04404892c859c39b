"""Models of ModelScope, in a folder of our own within its cache."""

import http
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from offhook.media.untrusted_json import read_json
from offhook.pipeline.engines.hub import download_io
from offhook.pipeline.engines.hub.download_io import Progress, Record, RemoteFile, Store, complete
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.streams.retry import AttemptFailed

SITE = "https://www.modelscope.cn"
CACHE = "~/.cache/modelscope"
"""Default cache folder; the environment variable MODELSCOPE_CACHE overrides it."""
LISTING = ".offhook-files.json"
"""The `Record`, in the model's folder."""
LOCK = ".offhook-lock"
BRANCH = "master"
READ_BYTES = 1 << 16


def store_of(name: str, revision: str) -> Store:
    """Returns the place of a revision in the cache."""
    cache = Path(os.environ.get("MODELSCOPE_CACHE") or CACHE).expanduser()
    folder = cache / "offhook" / name / quote(revision or BRANCH, safe="")
    return Store(folder, folder / LISTING, folder / LOCK, "MODELSCOPE_CACHE")


def find(name: str, revision: str, progress: Progress, patterns: Sequence[str]) -> Path:
    """Raises EngineError."""
    revision = revision or BRANCH
    store = store_of(name, revision)
    try:
        record = Record.of(name, _listing(name, revision))
    except (OSError, http.client.HTTPException) as error:
        # no network: the cached copy may suffice
        if download_io.is_complete(store, patterns):
            return store.folder
        raise EngineError(
            f"{name} is not on this machine, or not all of it, and {SITE} cannot be reached "
            f"({error}): download it elsewhere and name its folder",
            "unreachable",
        ) from error
    wanted = record.wanted(name, patterns)
    complete(_Repository(name, revision), store, wanted, progress, record)
    return store.folder


def _listing(name: str, revision: str) -> list[RemoteFile]:
    """Raises EngineError, and OSError or HTTPException if the hub does not respond."""
    asked = urlencode({"Revision": revision, "Recursive": "true"})
    try:
        with _open(f"/api/v1/models/{quote(name)}/repo/files?{asked}") as answer:
            told = read_json(download_io.whole(iter(lambda: answer.read1(READ_BYTES), b"")))
        files = told["Data"]["Files"]
        if len(files) > download_io.MAX_FILES:
            raise ValueError(f"more than {download_io.MAX_FILES} files")
        return [
            RemoteFile(str(file["Path"]), int(file["Size"]), str(file.get("Sha256") or ""))
            for file in files
            if file.get("Type") == "blob"
        ]
    except urllib.error.HTTPError as error:
        raise _refused(name, revision, error) from error
    except download_io.NO_LISTING as error:
        raise EngineError(f"{SITE} answers what is no list of files: {error!r:.300}") from error


@dataclass(frozen=True)
class _Repository:
    """See `download_io.Source`."""

    name: str
    revision: str

    @contextmanager
    def open(self, file: RemoteFile, begin: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        asked = urlencode({"Revision": self.revision, "FilePath": file.path})
        try:
            answer = _open(f"/api/v1/models/{quote(self.name)}/repo?{asked}", begin)
        except urllib.error.HTTPError as error:
            raise _refused(self.name, self.revision, error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AttemptFailed(f"{error!r}") from error
        with answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            yield begin if resumed else 0, _pieces(answer)


def _pieces(answer: Any) -> Iterator[bytes]:
    """Raises AttemptFailed."""
    while True:
        try:
            data = answer.read(download_io.CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise AttemptFailed(f"{error!r}") from error
        if not data:
            return
        yield data


def _open(path: str, begin: int = 0) -> Any:
    if download_io.is_offline():
        raise ConnectionError("HF_HUB_OFFLINE is set")
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    request = urllib.request.Request(SITE + path, headers=headers)
    return urllib.request.build_opener(_Redirects).open(request, timeout=download_io.TIMEOUT_S)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = download_io.MAX_REDIRECTS

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, url: str
    ) -> Any:
        fp.close()  # else its body is read, however long it is
        if not download_io.may_lead(SITE, url):
            raise EngineError(
                f"{SITE} leads to where nothing is encrypted ({url[:200]!a}): do not trust this "
                "network"
            )
        return super().redirect_request(req, fp, code, msg, headers, url)


def _refused(name: str, revision: str, error: urllib.error.HTTPError) -> EngineError:
    if error.code in (401, 403):
        return EngineError(
            f"{SITE} does not give {name} to everybody ({error.code}): download it with an "
            "account that may have it, and name its folder"
        )
    if error.code == 404:
        return EngineError(
            f"{SITE} has no model {name} with a revision {revision}, and there is no such folder"
        )
    return EngineError(f"{SITE} has failed ({error.code}): try again later")
