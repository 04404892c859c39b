"""Sealed recordings that somebody has changed: a clear error, and never a wrong sound."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from offhook.media.sealing.files_io import NewFile
from offhook.media.sealing.keyring import Keyring, new_key
from offhook.media.sealing.names import timeline_path
from offhook.media.sealing.sealed import CHUNK_BYTES, HEADER_BYTES, TAG_BYTES
from offhook.web.config.server import Recording
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from tests.web.edge.recordings.test_encrypted import cli
from tests.web.edge.recordings.test_pause import recording
from tests.web.edge.test_history import keeping, records, written
from tests.web.records.made_calls import begun, over, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOUND = b"OggS" + os.urandom(5 * CHUNK_BYTES)


@dataclass
class Kept:
    """Two calls with sealed recordings."""

    edge: Edge
    folder: Path
    url: str

    def sound(self, call: str) -> Path:
        return self.folder / "sound" / f"{call}.ogg.sealed"

    async def get(self, call: str, **headers: str) -> tuple[int, bytes, str]:
        """Status, body and whether it is said to be incomplete; the body ends where it breaks."""
        body = b""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.url}/calls/{call}/recording", headers=headers) as response,
        ):
            try:
                async for part in response.content.iter_any():
                    body += part
            except aiohttp.ClientPayloadError:
                return response.status, body, "broken off"
        return response.status, body, response.headers.get("Offhook-Recording", "")

    async def save(self, call: str, key: Path | None = None) -> int:
        """Saves a recording by the command; returns its status."""
        out = str(self.folder / "out")
        return await asyncio.to_thread(cli, self.folder, key or self.key, "save", call, out)

    @property
    def key(self) -> Path:
        return self.folder / "key"

    def saved(self) -> list[str]:
        folder = self.folder / "out"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@asynccontextmanager
async def playing(edge: Edge, folder: Path, settings: Recording) -> AsyncIterator[str]:
    edge.config = edge.config.model_copy(update={"recording": settings})
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        async with keeping(edge, records(folder)):
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def kept(edge: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    (tmp_path / "key").write_text(new_key())
    keys = Keyring.parse((tmp_path / "key").read_text())
    settings = recording(tmp_path, key_file=tmp_path / "key")
    (tmp_path / "sound").mkdir()
    async with playing(edge, tmp_path, settings) as url:
        kept = Kept(edge, tmp_path, url)
        assert edge.records.kept is not None
        for call in ("mine", "other"):
            for path, content in (
                (kept.sound(call), SOUND + call.encode()),
                (timeline_path(kept.sound(call)), b"{}\n"),
            ):
                file = NewFile(path, keys)
                file.write(content)
                file.finish()
            for entry in (begun(call), said(call, 1, "caller", "hello")):
                edge.records.kept.add(entry)
            edge.records.kept.add(over(call, recording=str(kept.sound(call))))
        await written(edge)
        yield kept


def flip(path: Path, at: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(changed)


def place_of(chunk: int) -> int:
    """Where a chunk begins in a sealed file."""
    return HEADER_BYTES + chunk * (CHUNK_BYTES + TAG_BYTES)


async def test_it_plays_as_it_was_recorded(kept: Kept) -> None:
    assert await kept.get("mine") == (200, SOUND + b"mine", "")
    assert await kept.save("mine") == 0
    assert (kept.folder / "out" / "mine.ogg").read_bytes() == SOUND + b"mine"


async def test_the_recording_of_another_call_is_not_played(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, other, aside = kept.sound("mine"), kept.sound("other"), kept.folder / "aside"
    mine.rename(aside)
    other.rename(mine)
    aside.rename(other)
    for call in ("mine", "other"):
        for headers in ({}, {"Range": "bytes=0-9"}, {"Range": f"bytes={CHUNK_BYTES}-"}):
            status, body, _ = await kept.get(call, **headers)
            assert status == 409
            assert b"cannot be played: it was changed" in body
    assert await kept.save("mine") == 1
    assert "is another file under this name" in capsys.readouterr().err
    assert "mine.ogg" not in kept.saved()


async def test_a_file_in_the_clear_is_no_sealed_one(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.sound("mine").write_bytes(b"OggS" + bytes(500))
    status, body, _ = await kept.get("mine")
    assert (status, b"no sealed file" in body) == (409, True)
    assert await kept.save("mine") == 1
    assert "no sealed file" in capsys.readouterr().err


@pytest.mark.parametrize("at", [9, 20, HEADER_BYTES + 5])
async def test_a_changed_beginning_is_said(
    kept: Kept, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(kept.sound("mine"), at)
    status, body, _ = await kept.get("mine")
    assert (status, b"cannot be played" in body) == (409, True)
    assert await kept.save("mine") == 1
    assert capsys.readouterr().err
    assert "mine.ogg" not in kept.saved()


async def test_what_was_changed_later_breaks_off_there(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(kept.sound("mine"), place_of(3) + 7)
    first = {"Range": f"bytes=0-{3 * CHUNK_BYTES - 1}"}
    assert await kept.get("mine", **first) == (206, SOUND[: 3 * CHUNK_BYTES], "")
    status, body, _ = await kept.get("mine", Range=f"bytes={3 * CHUNK_BYTES}-")
    assert (status, b"in chunk 3" in body) == (409, True)
    status, body, how = await kept.get("mine")
    assert status == 409 or (how == "broken off" and SOUND.startswith(body))
    assert await kept.save("mine") == 1
    assert "in chunk 3" in capsys.readouterr().err
    assert "mine.ogg" not in kept.saved()  # nor a part that looks like all


@pytest.mark.parametrize("to", [place_of(3), place_of(3) + 100, place_of(5) + 5])
async def test_what_was_cut_off_plays_up_to_there_and_is_said_to_be(
    kept: Kept, to: int, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(kept.sound("mine"), to)
    chunks = (to - HEADER_BYTES) // (CHUNK_BYTES + TAG_BYTES)
    left = SOUND[: chunks * CHUNK_BYTES]
    assert await kept.get("mine") == (200, left, "incomplete")
    assert await kept.save("mine") == 1
    assert "its end is missing" in capsys.readouterr().err
    assert (kept.folder / "out" / "mine.ogg").read_bytes() == left


@pytest.mark.parametrize("to", [0, 7, HEADER_BYTES - 1])
async def test_a_cut_header_is_said(kept: Kept, to: int) -> None:
    os.truncate(kept.sound("mine"), to)
    status, body, _ = await kept.get("mine")
    assert (status, b"header was cut off" in body) == (409, True)


async def test_of_a_rotated_key_the_missing_one_is_named(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    old, both, new = kept.key.read_text(), kept.folder / "both", kept.folder / "new"
    new.write_text(new_key())
    both.write_text(f"{new.read_text()}\n{old}")
    assert await kept.save("other", both) == 0
    assert await kept.save("mine", new) == 1
    assert "add the key that was in use when it was recorded" in capsys.readouterr().err
    settings: Any = recording(kept.folder, key_file=new)
    kept.edge.config = kept.edge.config.model_copy(update={"recording": settings})
    status, body, _ = await kept.get("mine")
    assert (status, b"add the key that was in use" in body) == (409, True)
