"""Downloads models into a local cache from the Hugging Face hub, a mirror of it, or ModelScope.

A name may end with a revision (a branch, tag or commit): "Qwen/Qwen3-ASR-0.6B@main". Without one,
models in PINNED use the revision they were tested with, others the latest. Every downloaded file is
checked against the hub's hash.
"""

import fcntl
import hashlib
import http.client
import io
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode

from offhook.pipeline.speech.recognizer import EngineError

Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes); the total grows while files are discovered."""

FILES = ("*.json", "*.safetensors", "merges.txt")
"""Files needed from a repository and its subfolders, unless the caller of `find` names others."""
PINNED = {
    "Qwen/Qwen3-ASR-0.6B": "5eb144179a02acc5e5ba31e748d22b0cf3e303b0",
    "Qwen/Qwen3-ASR-0.6B-hf": "7f1569a48a89f3e3f4dc3a5c9d28bddd903bc76c",
    "Qwen/Qwen3-ASR-1.7B": "7278e1e70fe206f11671096ffdd38061171dd6e5",
    "Qwen/Qwen3-ASR-1.7B-hf": "bcd2b5b7f32b480ab5790554cfa8347f246a14f3",
    "Qwen/Qwen3-ForcedAligner-0.6B": "c7cbfc2048c462b0d63a45797104fc9db3ad62b7",
    "Qwen/Qwen3-ForcedAligner-0.6B-hf": "c07281df297b9905d24a508279258cccf987a064",
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base": "5d83992436eae1d760afd27aff78a71d676296fc",
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice": "85e237c12c027371202489a0ec509ded67b5e4b5",
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base": "fd4b254389122332181a7c3db7f27e918eec64e3",
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": "0c0e3051f131929182e2c023b9537f8b1c68adfe",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign": "5ecdb67327fd37bb2e042aab12ff7391903235d3",
    "kyutai/pocket-tts-without-voice-cloning": "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
    "nvidia/nemotron-3.5-asr-streaming-0.6b": "ea30d66debe3740a08b573244286791d423d6b3e",
    "nvidia/nemotron-speech-streaming-en-0.6b": "ebe59e5a817142986528bbbee5dba8db7b38ed50",
}
"""Pinned commits on the Hugging Face hub; ModelScope has others."""
MODELSCOPE = "modelscope"
MODELSCOPE_URL = "https://www.modelscope.cn"
MODELSCOPE_CACHE = "~/.cache/modelscope"
"""Default cache folder; the environment variable of this name overrides it."""
LISTING = ".offhook-files.json"
"""In a folder from ModelScope: the hashes of the downloaded files."""
LOCK = ".offhook-lock"
TIMEOUT_S = 30.0
"""Time in s without data before a download is retried."""
ATTEMPTS = 4
"""Attempts to continue a download before it fails."""
CHUNK_BYTES = 1 << 20
MTIME_S = 2.0
"""Resolution in s of file modification times."""


def repository(model: str) -> tuple[str, str]:
    """Splits "Qwen/Qwen3-ASR-0.6B@main" into name and revision, which may be empty."""
    name, _, revision = model.partition("@")
    return name, revision


def find(
    model: str,
    progress: Progress = lambda done, total: None,
    hub: str = "",
    files: Sequence[str] = FILES,
) -> Path:
    """Returns the folder of a model: `model` itself if it is a folder, else the repository of this
    name, downloading what is not cached.

    `hub` is the URL of a Hugging Face hub mirror, or "modelscope"; empty: the hub itself or
    HF_ENDPOINT. `files` are the wanted paths in the repository, as patterns of fnmatch, whose `*`
    also matches slashes. Raises EngineError with advice on what to do.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    name, revision = repository(model)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise EngineError(f"there is no folder {model}")
    if hub == MODELSCOPE:
        return _from_modelscope(name, revision or "master", progress, files)
    return _from_hugging_face(name, revision or PINNED.get(name, "main"), progress, hub, files)


# --- the Hugging Face hub ---


def _from_hugging_face(
    name: str, revision: str, progress: Progress, hub: str, files: Sequence[str]
) -> Path:
    """Raises EngineError."""
    try:
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise EngineError(
            f"there is no folder {name}; to download it: pip install huggingface_hub"
        ) from error
    began, site = time.time() - MTIME_S, hub or constants.ENDPOINT
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(files),
                tqdm_class=_reporting(progress),
                endpoint=hub or None,
            )
        )
    except GatedRepoError as error:
        raise EngineError(
            f"{name} asks for its licence to be accepted: do so at {site}/{name}, and set HF_TOKEN "
            "to a token of that account"
        ) from error
    except RevisionNotFoundError as error:
        raise EngineError(
            f"{name} has no revision {revision}: write a branch, tag or commit behind the @, or "
            "leave it out"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise EngineError(
            f"the hub has no model {name}, and there is no such folder; a private one needs "
            "HF_TOKEN"
        ) from error
    except LocalEntryNotFoundError as error:
        if _status(error) in (401, 403):
            raise EngineError(_refused_by_hub(name, site)) from error
        raise EngineError(
            f"{name} is not on this machine, or not all of it, and the hub cannot be reached (no "
            "network, or HF_HUB_OFFLINE is set): download it elsewhere and name its folder, or "
            "name a mirror: [engines] hub"
        ) from error
    except Exception as error:  # of httpx or requests, by the version of the hub's library
        if _status(error) in (401, 403):
            raise EngineError(_refused_by_hub(name, site)) from error
        words = " ".join(str(error).split())
        raise EngineError(
            f"{name} could not be downloaded: {words}. What has come is kept: start again"
        ) from error
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_mtime >= began:
            _check_blob(path, name)
    return folder


def _refused_by_hub(name: str, site: str) -> str:
    return (
        f"the hub refuses {name}: see at {site}/{name} who may have it, and set HF_TOKEN to a "
        "valid token of such an account"
    )


def _status(error: BaseException | None) -> int:
    """Returns the HTTP status that an error refers to; 0 if none."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status:
            return int(status)
        error = error.__cause__
    return 0


def _check_blob(path: Path, name: str) -> None:
    """Checks a cached file, a link to a blob named by its hash: SHA-256 for large files, Git's
    SHA-1 for others. Raises EngineError."""
    blob = path.resolve()
    digest = blob.name
    if len(digest) == hashlib.sha256().digest_size * 2:
        found = _digest(blob, hashlib.sha256())
    elif len(digest) == hashlib.sha1().digest_size * 2:
        found = _digest(blob, hashlib.sha1(f"blob {blob.stat().st_size}\0".encode()))
    else:  # no link, on a file system without them
        return
    if found != digest:
        path.unlink()
        blob.unlink()
        raise EngineError(_damaged(path.name, name))


def _damaged(file: str, name: str) -> str:
    return (
        f"{file} of {name} came damaged: it has not the hash that the hub tells. It is removed: "
        "start again to download it anew, and if it comes so again, do not trust this hub or mirror"
    )


def _digest(path: Path, known: Any) -> str:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            known.update(data)
    digest: str = known.hexdigest()
    return digest


def _reporting(progress: Progress) -> type[Any]:
    """Returns a tqdm class that draws nothing and reports bytes to `progress`. The hub library
    creates one bar for receiving and one for writing; the one further ahead counts."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    bars: list[Any] = []

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": _NullStream(), "disable": False})
            if self.unit == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if self.unit == "B":
                done = max(bar.n for bar in bars)
                progress(int(done), int(max(bar.total or 0 for bar in bars)))
            return shown

    return Bar


class _NullStream(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


# --- ModelScope ---


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    sha256: str


def _from_modelscope(name: str, revision: str, progress: Progress, patterns: Sequence[str]) -> Path:
    """Raises EngineError."""
    cache = Path(os.environ.get("MODELSCOPE_CACHE") or MODELSCOPE_CACHE).expanduser()
    folder = cache / "offhook" / name / quote(revision, safe="")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may download the same model
        try:
            files = _listed(name, revision, patterns)
        except OSError as error:  # no network: the cached copy may suffice
            if _known(folder).complete:
                return folder
            raise EngineError(
                f"{name} is not on this machine, or not all of it, and {MODELSCOPE_URL} cannot be "
                f"reached ({error}): download it elsewhere and name its folder"
            ) from error
        _complete(name, revision, files, folder, progress)
    return folder


def _complete(
    name: str, revision: str, files: list[_File], folder: Path, progress: Progress
) -> None:
    """Raises EngineError."""
    done, total = 0, sum(file.size for file in files)
    known = _known(folder)
    for file in files:
        path = folder / file.path
        if known.files.get(file.path) != file.sha256 or not path.is_file():
            known.complete = False
            known.write(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            _fetch(name, revision, file, path, partial(_add, progress, done, total))
            known.files[file.path] = file.sha256
            known.write(folder)
        done += file.size
        progress(done, total)
    known.complete = True
    known.write(folder)


def _add(progress: Progress, done: int, total: int, come: int) -> None:
    progress(done + come, total)


@dataclass
class _Known:
    """The downloaded files of a revision."""

    files: dict[str, str] = field(default_factory=dict)
    """Paths to hashes."""
    complete: bool = False

    def write(self, folder: Path) -> None:
        (folder / LISTING).write_text(json.dumps(asdict(self)))


def _known(folder: Path) -> _Known:
    try:
        return _Known(**json.loads((folder / LISTING).read_text()))
    except (OSError, ValueError, TypeError):
        return _Known()


def _listed(name: str, revision: str, patterns: Sequence[str]) -> list[_File]:
    """Returns the wanted files. Raises EngineError, and OSError if the hub does not respond."""
    asked = urlencode({"Revision": revision, "Recursive": "true"})
    try:
        with _open(f"/api/v1/models/{quote(name)}/repo/files?{asked}") as answer:
            told = json.load(answer)
        files = [
            _File(str(file["Path"]), int(file["Size"]), str(file.get("Sha256") or ""))
            for file in told["Data"]["Files"]
            if file.get("Type") == "blob"
        ]
    except urllib.error.HTTPError as error:
        raise _refused(name, revision, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{MODELSCOPE_URL} answers what is no list of files: {error!r}"
        ) from error
    wanted = [file for file in files if any(fnmatch(file.path, pattern) for pattern in patterns)]
    for file in wanted:
        place = PurePosixPath(file.path)
        if place.is_absolute() or ".." in place.parts:
            raise EngineError(f"{MODELSCOPE_URL} names a file outside of {name}: {file.path!r}")
    return wanted


def _fetch(name: str, revision: str, file: _File, path: Path, come: Callable[[int], None]) -> None:
    """Downloads a file, continuing a partial download. Raises EngineError."""
    part = path.with_name(path.name + ".part")
    left = ATTEMPTS
    while (have := part.stat().st_size if part.is_file() else 0) < file.size or not part.is_file():
        try:
            _append(name, revision, file, part, have, come)
        except urllib.error.HTTPError as error:
            raise _refused(name, revision, error) from error
        except (OSError, http.client.HTTPException) as error:
            left = left - 1 if part.is_file() and part.stat().st_size <= have else ATTEMPTS
            if not left:
                raise EngineError(
                    f"{file.path} of {name} could not be downloaded: {error!r}. What has come is "
                    "kept: start again"
                ) from error
        else:
            if part.stat().st_size <= have:
                break
    if part.stat().st_size != file.size or file.sha256 not in ("", _digest(part, hashlib.sha256())):
        part.unlink()
        raise EngineError(_damaged(file.path, name))
    part.replace(path)


def _append(
    name: str, revision: str, file: _File, part: Path, have: int, come: Callable[[int], None]
) -> None:
    """Raises OSError, HTTPException."""
    asked = urlencode({"Revision": revision, "FilePath": file.path})
    with _open(f"/api/v1/models/{quote(name)}/repo?{asked}", have) as answer:
        if have and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        with part.open("ab" if have else "wb") as kept:
            while data := answer.read(CHUNK_BYTES):
                kept.write(data)
                have += len(data)
                come(have)


def _open(path: str, begin: int = 0) -> Any:
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    request = urllib.request.Request(MODELSCOPE_URL + path, headers=headers)
    return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def _refused(name: str, revision: str, error: urllib.error.HTTPError) -> EngineError:
    if error.code in (401, 403):
        return EngineError(
            f"{MODELSCOPE_URL} does not give {name} to everybody ({error.code}): download it with "
            "an account that may have it, and name its folder"
        )
    if error.code == 404:
        return EngineError(
            f"{MODELSCOPE_URL} has no model {name} with a revision {revision}, and there is no "
            "such folder"
        )
    return EngineError(f"{MODELSCOPE_URL} has failed ({error.code}): try again later")
