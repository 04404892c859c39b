"""Recordings that are encrypted: written by a real call, played over HTTP and by commands."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from offhook.media.sealing.keyring import new_key
from offhook.web.app.cli.main import main
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.server import Recording
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from tests.media.test_recording import decode
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import called
from tests.web.edge.recordings.test_pause import agents, fresh, recording
from tests.web.edge.test_history import keeping, records, written

__all__ = ["fresh"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def recorded(fresh: Edge, tmp_path: Path) -> AsyncIterator[tuple[Path, Recording]]:
    """A folder with a call of some seconds, and how it was recorded."""
    (tmp_path / "key").write_text(new_key())
    settings = recording(tmp_path, key_file=tmp_path / "key")
    greeting = "Hello there. This is a greeting that takes a while to be said, as some do."
    async with model([says("Good bye.")]) as scripted, keeping(fresh, records(tmp_path)):
        shop = {
            name: agent.model_copy(update={"greeting": greeting})
            for name, agent in agents(tmp_path, scripted.url).items()
        }
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "some do." in page.words())
        await written(fresh)
    assert fresh.records.recordings is not None
    await asyncio.to_thread(fresh.records.recordings.close)
    fresh.records.recordings = None
    yield tmp_path, settings


async def get(url: str, **headers: str) -> tuple[int, bytes, Any]:
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
        return response.status, await response.read(), response.headers


async def served(edge: Edge, folder: Path, settings: Recording, **headers: str) -> Any:
    """What the edge answers to somebody who plays the call."""
    edge.config = edge.config.model_copy(update={"recording": settings})
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        async with keeping(edge, records(folder)):
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/calls/phone/recording"
            return await get(url, **headers)
    finally:
        await runner.cleanup()


def cli(folder: Path, key: Path | None, *arguments: str) -> int:
    path = folder / "cli.toml"
    key_file = f'key_file = "{key}"\n' if key is not None else ""
    path.write_text(
        f'[records]\nurl = "sqlite:///{folder}/calls.db"\n[recording]\nenabled = true\n{key_file}'
    )
    return main(["calls", *arguments, "--config", str(path)])


async def test_it_is_played_from_any_byte_and_saved_by_a_command(
    fresh: Edge,
    recorded: tuple[Path, Recording],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, settings = recorded
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    sealed = b"".join(path.read_bytes() for path in sorted((folder / "sound").iterdir()))
    assert [path.name for path in sorted((folder / "sound").iterdir())] == [
        *("phone.jsonl.sealed", "phone.ogg.sealed")
    ]
    for plain in (b"OggS", b"OpusHead", b"Hello", b"agent_turn"):
        assert plain not in sealed
    status, whole, headers = await served(fresh, folder, settings)
    assert (status, headers["Content-Type"], headers["Accept-Ranges"]) == (
        *(200, "audio/ogg"),
        "bytes",
    )
    assert whole.startswith(b"OggS")
    assert decode(whole).shape[1] > 48_000
    for start, stop in ((0, 1), (4095, 4097), (5000, 9000), (len(whole) - 10, len(whole))):
        status, part, headers = await served(
            fresh, folder, settings, Range=f"bytes={start}-{stop - 1}"
        )
        assert (status, part) == (206, whole[start:stop])
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
    status, part, _ = await served(fresh, folder, settings, Range="bytes=-20")
    assert (status, part) == (206, whole[-20:])
    status, _, headers = await served(fresh, folder, settings, Range=f"bytes={len(whole)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(whole)}")

    key = folder / "key"
    code = await asyncio.to_thread(cli, folder, key, "save", "phone", str(folder / "out"))
    out, _ = capsys.readouterr()
    assert (code, out.split()) == (0, [f"{folder}/out/phone.ogg", f"{folder}/out/phone.jsonl"])
    assert (folder / "out" / "phone.ogg").read_bytes() == whole
    lines = [json.loads(line) for line in (folder / "out" / "phone.jsonl").open()]
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("header", "end")
    assert await asyncio.to_thread(cli, folder, key, "save", "phone", str(folder / "out")) == 1
    assert "is there already" in capsys.readouterr().err


async def test_a_missing_a_wrong_key_and_a_changed_file_are_said(
    fresh: Edge,
    recorded: tuple[Path, Recording],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, settings = recorded
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    other = folder / "other"
    other.write_text(new_key())
    for key, words in ((None, "set [recording] key_file"), (other, "was in use when")):
        without = settings.model_copy(update={"key_file": key})
        status, body, _ = await served(fresh, folder, without)
        assert status == 409
        assert words in body.decode()
        code = await asyncio.to_thread(cli, folder, key, "save", "phone", str(folder / "out"))
        _, err = capsys.readouterr()
        assert code == 1
        assert words in err
    path = folder / "sound" / "phone.ogg.sealed"
    sealed = bytearray(path.read_bytes())
    sealed[200] ^= 1
    path.write_bytes(sealed)
    status, body, _ = await served(fresh, folder, settings)
    assert status == 409
    assert "was changed, or is damaged, in chunk 0" in body.decode()


async def test_a_call_in_progress_is_played_as_far_as_it_is_written(
    fresh: Edge, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(new_key())
    settings = recording(tmp_path, key_file=tmp_path / "key")
    runner = Runner(application(fresh))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/calls/phone/recording"
    try:
        async with model() as scripted, keeping(fresh, records(tmp_path)):
            shop = agents(tmp_path, scripted.url)
            async with called(fresh, shop, recording=settings) as page:
                await until(lambda: "Hello there." in page.words())
                sound = tmp_path / "sound" / "phone.ogg.sealed"
                await until(lambda: sound.stat().st_size > 5000)
                status, begun, _ = await get(url)
                async with aiohttp.ClientSession() as http, http.head(url) as response:
                    assert response.status == 200
                    assert int(response.headers["Content-Length"]) >= len(begun)
            assert (status, begun[:4]) == (200, b"OggS")
    finally:
        await runner.cleanup()


async def test_both_files_are_deleted_with_the_call(
    fresh: Edge, recorded: tuple[Path, Recording]
) -> None:
    folder, _ = recorded
    async with keeping(fresh, records(folder)):
        assert fresh.records.kept is not None
        store = fresh.records.kept.store
        forgotten = await asyncio.to_thread(store.deletion.forget_call, "phone", 0.0)
        faults, _ = await asyncio.to_thread(store.deletion.finish, forgotten, 0.0, None)
    assert faults == []
    assert list((folder / "sound").iterdir()) == []


async def test_keys_of_a_configuration_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calls", "key"]) == 0
    key = capsys.readouterr().out.strip()
    path = tmp_path / "offhook.toml"
    path.write_text(f'[recording]\nkey = "{key}"\n')
    keyring = load(path).recording.keyring()
    assert keyring is not None
    assert key not in repr(load(path))
    path.write_text('[recording]\nkey = "secret-and-too-short"\n')
    with pytest.raises(ConfigError, match="offhook calls key") as fault:
        load(path)
    assert "secret-and" not in str(fault.value)
    edge = Edge(
        Config.model_validate(
            {"recording": {"enabled": True, "key_file": tmp_path / "none", "directory": tmp_path}}
        )
    )
    with pytest.raises(ConfigError, match="No such file"):
        edge.records.open_recordings(edge.config.recording)
