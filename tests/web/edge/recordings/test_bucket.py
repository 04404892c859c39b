"""Recordings in a bucket: uploaded after real calls, played from there, and deleted there."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from loguru import logger

from offhook.media.sealing.files_io import LocalFile, NewFile, StoredFile
from offhook.media.sealing.keyring import new_key
from offhook.web.app.cli.main import main
from offhook.web.app.doctor.report_io import _bucket
from offhook.web.config.config import Config
from offhook.web.config.s3 import S3
from offhook.web.config.server import Recording
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from offhook.web.records.bucket import client_io, ledger
from offhook.web.records.bucket.client_io import PART_BYTES, Bucket
from offhook.web.records.bucket.faults import BucketFault, NotWanted
from tests.media.test_recording import decode
from tests.pipeline.conversation.phone import model
from tests.support.s3_server import IS_THERE, S3Server, serving
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import called
from tests.web.edge.recordings.test_encrypted import get
from tests.web.edge.recordings.test_pause import agents, fresh, recording
from tests.web.edge.test_history import keeping, records
from tests.web.records.made_calls import HERE, NOON, begun, over

__all__ = ["fresh"]
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not IS_THERE, reason="nanio or botocore is not installed"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with serving(tmp_path / "s3") as one:
        yield one


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Warnings of the log."""
    lines: list[str] = []
    sink = logger.add(lambda m: lines.append(m.record["message"]), level="WARNING")
    yield lines
    logger.remove(sink)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FIRST_RETRY_S", 0.05)


@asynccontextmanager
async def storing(
    edge: Edge, folder: Path, settings: Recording, s3: dict[str, Any]
) -> AsyncIterator[str]:
    """The edge keeps recordings in a bucket meanwhile; yields its address."""
    config = records(folder).model_copy(update={"recording": settings, "s3": S3(**s3)})
    edge.config = edge.config.model_copy(update={"recording": settings, "s3": config.s3})
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        async with keeping(edge, config):
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        edge.records.bucket = None
        await runner.cleanup()


async def call(edge: Edge, folder: Path, settings: Recording) -> None:
    """A call that is recorded, from its greeting to its end."""
    before = edge.config
    async with model() as scripted:
        shop = agents(folder, scripted.url)
        async with called(edge, shop, recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
    edge.config = before


def local(folder: Path) -> list[Path]:
    return list((folder / "sound").iterdir())


def place(edge: Edge) -> str:
    assert edge.records.kept is not None
    shown = edge.records.kept.store.show("phone")
    assert shown is not None
    return str(shown["recording"])


async def forget(url: str) -> Any:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/calls/forget", json={"call_id": "phone"}) as response,
    ):
        return await response.json()


def cli(folder: Path, s3: dict[str, Any], key: Path | None, *arguments: str) -> int:
    path = folder / "cli.toml"
    key_file = f'key_file = "{key}"\n' if key is not None else ""
    bucket = "".join(f"{name} = {json.dumps(value)}\n" for name, value in s3.items())
    path.write_text(
        f'[records]\nurl = "sqlite:///{folder}/calls.db"\n[recording]\nenabled = true\n'
        f"{key_file}[s3]\n{bucket}"
    )
    return main(["calls", *arguments, "--config", str(path)])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "encrypted"])
async def test_it_is_uploaded_played_from_any_byte_and_forgotten(
    fresh: Edge,
    tmp_path: Path,
    server: S3Server,
    sealed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    key = tmp_path / "key" if sealed else None
    if key is not None:
        key.write_text(new_key())
    settings, suffix = recording(tmp_path, key_file=key), ".sealed" if sealed else ""
    async with storing(fresh, tmp_path, settings, server.settings) as url:
        await call(fresh, tmp_path, settings)
        await until(lambda: place(fresh) == f"s3://calls/kept/phone.ogg{suffix}")
        await until(lambda: not local(tmp_path))
        assert server.names() == [f"phone.jsonl{suffix}", f"phone.ogg{suffix}"]
        assert (b"Hello there" in server.everything()) != sealed

        sound = f"{url}/calls/phone/recording"
        status, whole, headers = await get(sound)
        assert (status, headers["Content-Type"]) == (200, "audio/ogg")
        stored = StoredFile(
            LocalFile(server.folder / "calls/kept" / f"phone.ogg{suffix}"), settings.keyring()
        )
        assert whole == stored.read(0, stored.length)
        stored.close()
        assert decode(whole).shape[1] > 24_000
        for start, stop in ((0, 1), (4095, 4097), (len(whole) // 2, len(whole))):
            status, part, headers = await get(sound, Range=f"bytes={start}-{stop - 1}")
            assert (status, part) == (206, whole[start:stop])
            assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
        status, _, headers = await get(sound, Range=f"bytes={len(whole)}-")
        assert (status, headers["Content-Range"]) == (416, f"bytes */{len(whole)}")

        save = ("save", "phone", str(tmp_path / "out"))
        assert await asyncio.to_thread(cli, tmp_path, server.settings, key, *save) == 0
        assert capsys.readouterr().out.split() == [
            *(f"{tmp_path}/out/phone.ogg", f"{tmp_path}/out/phone.jsonl")
        ]
        assert (tmp_path / "out" / "phone.ogg").read_bytes() == whole
        assert "Hello there" in (tmp_path / "out" / "phone.jsonl").read_text()

        done = await forget(url)
        assert done == {"calls": 1, "recordings": 1, "recordings_waiting": 0}
        assert (await get(sound))[0] == 404
    assert (server.names(), local(tmp_path)) == ([], [])
    for kept in (b"OggS", b"Hello there", b"offhook\x01"):
        assert kept not in server.everything()


async def test_a_player_is_sent_on_to_a_signed_link_if_it_is_not_encrypted(
    fresh: Edge, tmp_path: Path, server: S3Server
) -> None:
    settings = recording(tmp_path)
    async with storing(fresh, tmp_path, settings, {**server.settings, "links": True}) as url:
        await call(fresh, tmp_path, settings)
        await until(lambda: place(fresh).startswith("s3://"))
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{url}/calls/phone/recording", allow_redirects=False) as response,
        ):
            assert response.status == 302
            link = response.headers["Location"]
        assert link.startswith(f"{server.settings['endpoint']}/calls/kept/phone.ogg?")
        status, part, headers = await get(link, Range="bytes=0-3")
        assert (status, part, headers["Content-Type"]) == (206, b"OggS", "audio/ogg")
        assert (await get(link.replace("X-Amz-Signature=", "X-Amz-Signature=0")))[0] == 403
        _, _, headers = await get(f"{url}/console")
        policy = headers["Content-Security-Policy"]
        assert f"media-src 'self' blob: {server.settings['endpoint']}" in policy


async def test_calls_do_without_a_server_that_is_down_and_nothing_is_lost(
    fresh: Edge, tmp_path: Path, server: S3Server, said: list[str]
) -> None:
    settings = recording(tmp_path)
    works = fresh.metrics.registry.get_sample_value
    async with storing(fresh, tmp_path, settings, server.settings) as url:
        server.kill()
        await call(fresh, tmp_path, settings)
        await until(lambda: works("offhook_bucket_works") == 0)
        await until(lambda: works("offhook_recordings_waiting", {"work": "upload"}) == 1)
        status, whole, _ = await get(f"{url}/calls/phone/recording")
        assert (status, whole[:4]) == (200, b"OggS")
        server.start()
        await until(lambda: place(fresh).startswith("s3://"))
        assert (server.folder / "calls/kept/phone.ogg").read_bytes() == whole

        server.kill()
        status, words, _ = await get(f"{url}/calls/phone/recording")
        assert (status, "see [s3] endpoint" in words.decode()) == (503, True)
        done = await forget(url)
        assert done == {"calls": 1, "recordings": 1, "recordings_waiting": 1}
        await until(lambda: works("offhook_recordings_waiting", {"work": "deletion"}) == 1)
        server.start()
        await until(lambda: server.names() == [])
        await until(lambda: works("offhook_recordings_waiting", {"work": "deletion"}) == 0)
        assert works("offhook_bucket_works") == 1
    changes = [
        "cannot" if "cannot be used" in line else "again" for line in said if "the bucket" in line
    ]
    assert changes == ["cannot", "again", "cannot", "again"]


async def test_a_wrong_secret_is_said_with_what_to_do(
    fresh: Edge, tmp_path: Path, server: S3Server, said: list[str]
) -> None:
    wrong = {**server.settings, "secret_key": "another"}
    settings = recording(tmp_path)
    async with storing(fresh, tmp_path, settings, wrong):
        await call(fresh, tmp_path, settings)
        await until(lambda: any("cannot be used" in line for line in said))
    [line] = [line for line in said if "cannot be used" in line]
    assert "the secret does not belong to the key: see [s3] secret_key" in line
    assert "another" not in line
    assert len(local(tmp_path)) == 2
    with pytest.raises(OSError, match="see \\[s3\\] secret_key"):
        await asyncio.to_thread(_bucket, Config(s3=S3(**wrong)))
    found = await asyncio.to_thread(_bucket, Config(s3=S3(**server.settings)))
    assert "can be written, read in part and deleted" in found
    async with storing(fresh, tmp_path, settings, server.settings):
        await until(lambda: place(fresh).startswith("s3://"))
        await until(lambda: local(tmp_path) == [])


async def test_what_is_still_written_is_left_alone(
    fresh: Edge, tmp_path: Path, server: S3Server
) -> None:
    settings = recording(tmp_path)
    async with storing(fresh, tmp_path, settings, server.settings):
        await call(fresh, tmp_path, settings)
        await until(lambda: place(fresh).startswith("s3://"))
        writing = NewFile(tmp_path / "sound" / "writing.ogg", None)
        writing.write(b"OggS")
        kept = fresh.records.kept
        assert kept is not None
        of_call = [begun("writing"), over("writing", recording=str(tmp_path / "sound/writing.ogg"))]
        await asyncio.to_thread(kept.store.write, of_call, HERE, NOON)
        waits = fresh.metrics.registry.get_sample_value
        await until(lambda: waits("offhook_recordings_waiting", {"work": "upload"}) == 1)
        assert "writing.ogg" not in server.names()
        writing.write(b"the rest")
        writing.finish()
        await until(lambda: "writing.ogg" in server.names())
    assert (server.folder / "calls/kept/writing.ogg").read_bytes() == b"OggSthe rest"


async def test_an_upload_in_parts_goes_on_where_the_server_was_killed(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_io, "PART_BYTES", 64 << 10)
    assert PART_BYTES >= 5 << 20  # as S3 wants it
    content = b"".join(bytes([number]) * 1024 for number in range(250))
    path, name = tmp_path / "long.ogg", "kept/long.ogg"
    path.write_bytes(content)
    bucket = Bucket(S3(**server.settings).settings)
    sound = bucket.place_of("long.ogg")
    asked: list[int] = []

    def is_wanted() -> bool:
        asked.append(len(asked))
        if len(asked) == 4:  # before the third part
            server.kill()
        return True

    with pytest.raises(BucketFault, match="see \\[s3\\] endpoint"):
        await asyncio.to_thread(bucket.upload, path, sound, is_wanted)
    server.start()
    await asyncio.to_thread(bucket.upload, path, sound, lambda: True)
    assert (server.folder / "calls" / name).read_bytes() == content
    sent = [line for line in server.log.read_text().splitlines() if "partNumber=" in line]
    assert len(sent) == 4
    assert content[:4096] in server.everything()
    await asyncio.to_thread(bucket.remove, sound)
    assert content[:1024] not in server.everything()


async def test_what_an_upload_has_left_in_parts_is_deleted_too(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_io, "PART_BYTES", 64 << 10)
    path = tmp_path / "long.ogg"
    path.write_bytes(b"card number 4111 " * 10_000)
    bucket = Bucket(S3(**server.settings).settings)
    sound = bucket.place_of("long.ogg")
    wanted = iter((True, True, True))
    with pytest.raises(NotWanted):
        await asyncio.to_thread(bucket.upload, path, sound, lambda: next(wanted, False))
    assert b"4111" in server.everything()
    await asyncio.to_thread(bucket.remove, sound)
    assert b"4111" not in server.everything()
