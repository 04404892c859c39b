"""Mirrors of a hub that lie to a server which fetches a model: each says what it got."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support.hub_stand_in import COMMIT, Hub, running

TOKEN = "hf_the_operators_secret"
FILES = {"config.json": b"{}", "model.safetensors": os.urandom(100_000)}
MEMORY_BYTES = 4 << 30
"""Address space of the process that fetches, so that no lie can take the machine's memory."""
FETCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from offhook.pipeline.engines.hub import hub_io
from offhook.pipeline.engines.hub import modelscope_io
modelscope_io.SITE = sys.argv[1]
import huggingface_hub.utils, huggingface_hub.errors
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    hub_io.find("org/model", hub="modelscope" if sys.argv[3] == "modelscope" else sys.argv[1])
    print("the model came", end="")
except hub_io.EngineError as error:
    print("refused:", str(error).replace(sys.argv[1], "the hub")[:160], end="")
except BaseException as error:
    print("crashed:", repr(error)[:100], end="")
more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(", much memory" if more > 100_000 else "")
"""

Lie = Callable[[Hub, Hub], None]
"""Makes a hub lie; the second is a host of somebody else's."""


def _lies(**values: object) -> Lie:
    def lie(hub: Hub, other: Hub) -> None:
        for name, value in values.items():
            setattr(hub, name, value)

    return lie


def _entry(path: object, size: object = 2, oid: object = "0" * 40) -> Lie:
    return _lies(entries=[{"type": "file", "path": path, "size": size, "oid": oid}])


def _elsewhere(hub: Hub, other: Hub) -> None:
    hub.next_page = f"{other.url}/api/models/org/model/tree/{COMMIT}"


def _questions_elsewhere(hub: Hub, other: Hub) -> None:
    hub.leads_to = f"{other.url}/api/models/org/model/tree/{COMMIT}"


def _files_elsewhere(hub: Hub, other: Hub) -> None:
    hub.leads_files_to = other.url


def _around(hub: Hub, other: Hub) -> None:
    hub.leads_to = f"{hub.url}/api/models/org/model"


def _endless_redirect(hub: Hub, other: Hub) -> None:
    hub.leads_files_to, hub.endless = other.url, "redirects"


LIES: dict[str, Lie] = {
    "a commit that is a path": _lies(commit="../../../../escaped"),
    "a commit that is a branch": _lies(commit="master"),
    "a list that goes on elsewhere": _elsewhere,
    "a list that goes on at a user's host": _lies(next_page="{}@other.example/"),
    "a list that never ends": _lies(next_page="{}" + f"/api/models/org/model/tree/{COMMIT}?more"),
    "questions led elsewhere": _questions_elsewhere,
    "questions led around": _around,
    "files led elsewhere": _files_elsewhere,
    "files led to another scheme": _lies(leads_files_to="ftp://127.0.0.1:1"),
    "a file in a folder above": _entry("../../../../escaped.json"),
    "a file with an absolute name": _entry("/tmp/escaped.json"),
    "a file without a name": _entry(""),
    "a file in a folder without a name": _entry("a//b.json"),
    "a name with a zero byte": _entry("a\0.json"),
    "a name with a line break": _entry("a\nERROR forged.json"),
    "a name that is no text": _entry("\ud800.json"),
    "a name of a thousand folders": _entry("a/" * 1500 + "b.json"),
    "the name of our own record": _entry(".offhook-files.json"),
    "a file that is a folder of another": _entry("config.json/b.json"),
    "a hash that is a path": _entry("b.json", oid="../../../../escaped"),
    "a hash that is none": _entry("b.json", oid=""),
    "a size of nothing at all": _entry("b.json", -5),
    "a size beyond all disks": _entry("b.json", 10**30),
    "a size that is no number": _entry("b.json", [{}]),
    "twenty-five thousand files": _lies(
        entries=[
            {"type": "file", "path": f"{n}.bin", "size": 2, "oid": "0" * 40} for n in range(25_000)
        ]
    ),
    "compressed bodies": _lies(coding="gzip", files=FILES | {"a.json": bytes(200_000_000)}),
    "a list without an end": _lies(endless="questions"),
    "a file without an end": _lies(endless="files"),
    "a redirect without an end": _endless_redirect,
    "an error without an end": _lies(endless="errors", refuses=(400, "")),
}


async def lying_mirror(base: str, seconds: float, *, lie: str, hub: str = "hugging face") -> str:
    """Serves a model with one of LIES to a process that fetches it; `hub` may be "modelscope".
    `base` is not attacked: the server is the client here."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mirror = stack.enter_context(running(Hub(dict(FILES))))
        other = stack.enter_context(running(Hub(dict(FILES))))
        LIES[lie](mirror, other)
        cache = folder / "a" / "b" / "cache"
        environment = {
            **os.environ,
            "HF_HUB_CACHE": str(cache),
            "MODELSCOPE_CACHE": str(cache),
            "HF_TOKEN": TOKEN,
            "NO_PROXY": "*",
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FETCH, mirror.url, str(MEMORY_BYTES), hub),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
            got = [output.decode().strip() or f"ended with {process.returncode}"]
        except TimeoutError:
            got = [f"still busy after {seconds:g} s"]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        outside = _files_outside(cache, folder)
        if outside:
            got.append(f"{len(outside)} files written outside of the cache")
        if any(TOKEN in token for token in other.tokens):
            got.append("the token went to another host")
        taken = mirror.endless_sent + other.endless_sent
        if taken > 50_000_000:
            got.append(f"{taken >> 20} MB of it were taken")
        return ", ".join(got)


def _files_outside(cache: Path, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and cache not in path.parents]
