"""Finds models: in a folder, in the local cache, or on the Hugging Face hub, a mirror of it, or
ModelScope, downloading them into the cache.

A name may end with a revision (a branch, tag or commit): "Qwen/Qwen3-ASR-0.6B@main". Without one,
models of our engines use the commit they were tested with, others the latest.
"""

from collections.abc import Sequence
from pathlib import Path

from offhook.pipeline.engines.hub import hugging_face_io, modelscope_io
from offhook.pipeline.engines.hub.download_io import Progress as Progress
from offhook.pipeline.speech.engine_spec import FILES
from offhook.pipeline.speech.engines import catalogue
from offhook.pipeline.speech.errors import EngineError

MODELSCOPE = "modelscope"


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
    name, revision = _on_hub(model)
    if hub == MODELSCOPE:
        return modelscope_io.find(name, revision, progress, files)
    return hugging_face_io.find(name, revision or usual_revision(name), progress, hub, files)


def check(model: str, hub: str = "") -> None:
    """Raises EngineError if `find` would fail at once: there is no such folder, or nothing of the
    model is cached and the Hugging Face hub does not have it or cannot be reached. It saves the
    seconds that it takes to import torch."""
    if Path(model).expanduser().is_dir():
        return
    name, revision = _on_hub(model)
    if hub != MODELSCOPE:
        hugging_face_io.check(name, revision or usual_revision(name), hub)


def _on_hub(model: str) -> tuple[str, str]:
    """Returns name and revision of a repository. Raises EngineError if it cannot be one."""
    name, revision = repository(model)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise EngineError(f"there is no folder {model}")
    return name, revision


def usual_revision(name: str) -> str:
    """Returns the revision on the Hugging Face hub of a repository named without one; ModelScope
    has others."""
    pinned = (model.revision for model in catalogue() if model.repository == name)
    return next(pinned, "main")
