"""A server that is killed while it uploads: nothing is lost, and nothing is left in the bucket."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from offhook.web.records.bucket.client_io import PART_BYTES
from offhook.web.records.deletion import delete_files
from offhook.web.records.store import CallStore
from tests.support.ports import free_port
from tests.support.s3_server import IS_THERE, S3Server, serving
from tests.support.waiting import until
from tests.web.records.made_calls import HERE, NOON, begun, over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_THERE, reason="nanio or botocore is not installed"),
]
CALLS = ("one", "two", "three")
CONTENT = {call: f"the sound of {call} ".encode().ljust(64, b".") * 400_000 for call in CALLS}
"""Of four parts each."""


def of_upload(server: S3Server) -> list[Path]:
    """The parts that have arrived of uploads that are not complete."""
    return list((server.folder / ".nanio").rglob("parts/*.md5"))


@asynccontextmanager
async def edge(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`offhook serve`, killed at the end."""
    environment = {**os.environ, "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]'}
    environment.pop("OFFHOOK_RECORDS_URL", None)
    command = ("-m", "offhook", "serve", "--port", str(free_port()))
    with (folder / "edge.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--config", str(folder / "offhook.toml")),
            env=environment,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


def kept(folder: Path) -> CallStore:
    """A store with calls that are over and were recorded on this machine."""
    store = CallStore(f"sqlite:///{folder}/calls.db")
    store.prepare()
    (folder / "sound").mkdir()
    for call in CALLS:
        sound = folder / "sound" / f"{call}.ogg"
        sound.write_bytes(CONTENT[call])
        sound.with_suffix(".jsonl").write_text(f"what was said in {call}\n")
        entries = [begun(call, NOON), over(call, NOON + 20, recording=str(sound))]
        store.write(entries, HERE, NOON)
    return store


def places(store: CallStore) -> dict[str, str]:
    return {call: str((store.show(call) or {})["recording"]) for call in CALLS}


async def test_an_edge_that_is_killed_goes_on_at_its_next_start(tmp_path: Path) -> None:
    assert len(CONTENT["one"]) > 3 * PART_BYTES
    with serving(tmp_path / "s3") as server:
        bucket = "".join(f'{name} = "{value}"\n' for name, value in server.settings.items())
        (tmp_path / "offhook.toml").write_text(
            f'[records]\nurl = "sqlite:///{tmp_path}/calls.db"\nspool = "{tmp_path}/spool"\n'
            "recordings_days = 0\nwords_days = 0\ndays = 0\n"
            f'[recording]\nenabled = true\ndirectory = "{tmp_path}/sound"\n[s3]\n{bucket}'
        )
        store = kept(tmp_path)
        async with edge(tmp_path):
            await until(lambda: of_upload(server))
        left = {path.name for path in (tmp_path / "sound").iterdir()}
        for call, place in places(store).items():
            if not place.startswith("s3://"):
                assert {f"{call}.ogg", f"{call}.jsonl"} <= left

        forgotten = store.deletion.forget_call("three", NOON)  # it waits, or has just been begun
        assert delete_files(forgotten.recordings) == []
        async with edge(tmp_path):
            server.kill()  # as the edge starts
            server.start()
            await until(
                lambda: all(place.startswith("s3://") for place in list(places(store).values())[:2])
            )
            await until(lambda: not list((tmp_path / "sound").iterdir()))
            await until(lambda: len(server.names()) == 4)
        for call in CALLS[:2]:
            assert places(store)[call] == f"s3://calls/kept/{call}.ogg"
            assert (server.folder / "calls/kept" / f"{call}.ogg").read_bytes() == CONTENT[call]
            timeline = (server.folder / "calls/kept" / f"{call}.jsonl").read_text()
            assert timeline == f"what was said in {call}\n"
        store.deletion.forget_call("one", NOON)
        async with edge(tmp_path):
            await until(lambda: server.names() == ["two.jsonl", "two.ogg"])
            await until(lambda: store.ledger.waiting(["s3://calls/kept/one.ogg"]) == 0)
        assert CONTENT["one"][:64] not in server.everything()
        store.close()
