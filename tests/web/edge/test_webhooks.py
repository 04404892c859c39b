"""Webhooks about calls and trunks, as a real receiver gets them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from offhook.media.leg import CallInfo
from offhook.media.pcm import SAMPLES_IN
from offhook.media.sealing.keyring import new_key
from offhook.telephony.sip.trunks import registration
from offhook.web.app.cli.main import main
from offhook.web.config.agents import Agent
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.calls.store_queues import outbox_io, queue_io
from offhook.web.edge.edge_io import Edge
from offhook.web.http.listening_io import Runner
from offhook.web.http.webhook_signature import signed_headers
from offhook.web.records.webhooks import AT_ONCE
from tests.pipeline.conversation.phone import model
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page, called
from tests.web.edge.phones import ScriptedPhone, configured, served
from tests.web.edge.recordings.test_pause import agents, fresh, recording
from tests.web.edge.test_history import keeping, records
from tests.web.records.made_calls import begun, call_of

__all__ = ["fresh"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a secret of some length"
DEAD = "http://127.0.0.1:1/hook"


class Receiver:
    """A program that is told, and refuses what comes first."""

    def __init__(self, *statuses: int) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        """Headers and bodies."""
        self._statuses = list(statuses)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        """All bodies, also of what was refused."""
        return [json.loads(body) for _, body in self.got]

    def of(self, event: str) -> list[dict[str, Any]]:
        """What was told of one kind."""
        return [one["data"] for one in self.events if one["type"] == event]

    def check_signatures(self) -> None:
        for headers, body in self.got:
            at = float(headers["webhook-timestamp"])
            signed = signed_headers(headers["webhook-id"], body, [SECRET], at)
            assert headers["webhook-signature"] == signed["webhook-signature"]

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Yields where it listens."""
        app = web.Application()
        app.router.add_post("/hook", self._take)
        runner = Runner(app)
        await runner.setup()
        await runner.listen("127.0.0.1", port)
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        await self.may_answer.wait()
        return web.Response(status=self._statuses.pop(0) if self._statuses else 204)


def hook(url: str, *events: str) -> dict[str, Any]:
    return {"url": url, "secrets": [SECRET], "events": events}


async def test_a_call_is_told_to_a_program_though_another_one_is_dead(
    edge: Edge, tmp_path: Path
) -> None:
    program = Receiver(500)
    async with program.running() as url:
        hooks = [hook(url, "call.started", "call.ended"), hook(DEAD, "call.started", "call.ended")]
        async with keeping(edge, records(tmp_path, webhooks=hooks)):
            page = Page()
            page.info = CallInfo("webrtc")
            async with called(edge, {"desk": Agent(greeting="Hello there.")}, page):
                await until(lambda: "Hello there." in page.words())
            kept = edge.records.kept
            assert kept is not None
            outbox = kept.store.outbox
            await until(lambda: len(program.got) == 3)
            await until(lambda: {row["url"] for row in outbox.waiting()} == {DEAD})
            await edge.records.stop_queues()
            left = outbox.waiting()
    told = program.events
    assert [event["type"] for event in told] == ["call.started", "call.started", "call.ended"]
    assert program.got[0][0]["webhook-id"] == program.got[1][0]["webhook-id"]
    texts = [event.get("text") for event in told[-1]["data"]["timeline"]]
    assert "Hello there." in texts
    program.check_signatures()
    assert {row["url"] for row in left} == {DEAD}
    assert all("Connect" in row["fault"] or not row["attempts"] for row in left)


async def test_a_slow_receiver_slows_down_nobody_else(edge: Edge, tmp_path: Path) -> None:
    slow, quick = Receiver(), Receiver()
    slow.may_answer.clear()
    async with slow.running() as slow_url, quick.running() as quick_url:
        hooks = [hook(url, "call.started", "call.ended") for url in (slow_url, quick_url)]
        async with keeping(edge, records(tmp_path, webhooks=hooks)):
            kept = edge.records.kept
            assert kept is not None
            for number in range(AT_ONCE + 2):
                for entry in call_of(f"c{number}", "hello", edge="webrtc"):
                    kept.add(entry)
            await until(lambda: len(quick.of("call.ended")) == AT_ONCE + 2)
            assert kept.behind == 0  # nor does the store wait for it
            assert len(slow.got) == AT_ONCE
            slow.may_answer.set()
            await until(lambda: len(slow.of("call.ended")) == AT_ONCE + 2)
            for number in range(AT_ONCE + 2):
                of_call = [e["type"] for e in slow.events if e["data"]["call_id"] == f"c{number}"]
                assert list(dict.fromkeys(of_call)) == ["call.started", "call.ended"]


class Hours:
    """A clock by which an hour passes with each attempt."""

    def __init__(self, program: Receiver) -> None:
        self._program, self._start = program, time.time() + 3600

    def time(self) -> float:
        return self._start + 3600 * len(self._program.got)

    def later(self) -> float:
        """When what has failed now is due again at the latest."""
        return self.time() + 3600


async def test_a_receiver_that_is_dead_for_days_gets_all_of_it_by_a_command(
    edge: Edge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OFFHOOK_RECORDS_URL", raising=False)
    program = Receiver(*[500] * 100)
    clock = Hours(program)
    monkeypatch.setattr(outbox_io, "time", SimpleNamespace(time=clock.time))
    monkeypatch.setattr(queue_io, "time", SimpleNamespace(time=clock.later))
    monkeypatch.setattr(queue_io, "LOOK_S", 0.0)
    config = tmp_path / "cli.toml"
    config.write_text(f'[records]\nurl = "sqlite:///{tmp_path}/calls.db"\n')

    async def webhooks(*more: str) -> str:
        command = ["calls", "webhooks", *more, "--config", str(config)]
        assert await asyncio.to_thread(main, command) == 0
        return capsys.readouterr().out

    async with (
        program.running() as url,
        keeping(edge, records(tmp_path, webhooks=[hook(url, "call.ended")])),
    ):
        kept = edge.records.kept
        assert kept is not None
        for entry in call_of("call", "hello", edge="webrtc"):
            kept.add(entry)
        await until(lambda: kept.ready)
        await until(lambda: [w["state"] for w in kept.store.outbox.waiting()] == ["dead"])
        attempts = len(program.got)
        assert 70 <= attempts < 80  # of three days, one an hour
        told = await webhooks()
        assert "dead" in told
        assert "500" in told
        program._statuses.clear()
        assert await webhooks("--replay") == "tried again now: 1 webhooks\n"
        await until(lambda: not kept.store.outbox.waiting())
        assert await webhooks() == "no webhook waits\n"
    assert len(program.got) == attempts + 1
    assert len({headers["webhook-id"] for headers, _ in program.got}) == 1
    assert len({body for _, body in program.got}) == 1


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_recording_is_told_once_it_can_be_read(
    fresh: Edge, tmp_path: Path, sealed: bool
) -> None:
    (tmp_path / "key").write_text(new_key())
    settings = recording(tmp_path, **({"key_file": tmp_path / "key"} if sealed else {}))
    program = Receiver()
    async with model() as scripted, program.running() as url:
        hooks = [hook(url, "recording.ready")]
        async with keeping(fresh, records(tmp_path, webhooks=hooks)):
            async with called(fresh, agents(tmp_path, scripted.url), recording=settings) as page:
                await until(lambda: "Hello there." in page.words())
                assert not program.got
            await until(lambda: bool(program.got))
    [ready] = program.of("recording.ready")
    assert (ready["call_id"], ready["sealed"]) == (page.call_id, sealed)
    assert ready["place"] == str(tmp_path / "sound" / f"phone.ogg{'.sealed' if sealed else ''}")
    assert ready["seconds"] > 0
    program.check_signatures()


async def test_a_recording_that_the_end_of_a_server_completes_is_told_by_the_next(
    edge: Edge, tmp_path: Path
) -> None:
    program = Receiver()
    async with program.running() as url:
        config = records(tmp_path, webhooks=[hook(url, "recording.ready")])
        ends = CallRecords(edge.metrics, lambda: config, edge)
        ends.open_store(config)
        assert ends.kept is not None
        ends.kept.add(begun("call"))
        ready = partial(ends.recording_ready, "call")
        recorder = ends.writer(recording(tmp_path)).open("call", time.time(), ready)
        recorder.tick(np.zeros(SAMPLES_IN, np.int16), None)
        await ends.close()
        async with keeping(edge, config):
            await until(lambda: bool(program.got))
    [told] = program.of("recording.ready")
    assert (told["call_id"], told["seconds"]) == ("call", 0.02)


async def test_a_trunk_is_told_at_each_change_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REFUSED_S", 0.1)
    phone, program = ScriptedPhone(register=403), Receiver(503)
    async with phone.running() as where, program.running() as url:
        line = {"name": "line", "server": where, "register": True, "username": "u"}
        nowhere = {"name": "nowhere", "server": "no-such-host.invalid"}
        config = configured(where, trunks=[line | {"password": "word"}, nowhere])
        hooks = [hook(url, "trunk.registered", "trunk.failed")]
        kept = records(tmp_path, webhooks=hooks).records

        def of(trunk: str) -> list[tuple[str, str]]:
            """What was told of it for the first time, in order."""
            told = {headers["webhook-id"]: json.loads(body) for headers, body in program.got}
            found = [(one["type"], one["data"]) for one in told.values()]
            return [(event, data["reason"]) for event, data in found if data["trunk"] == trunk]

        async with served(config.model_copy(update={"records": kept}), keeps=True):
            await until(lambda: len(of("line")) == 1 and len(of("nowhere")) == 1)
            phone._register = 404
            await until(lambda: len(of("line")) == 2)
            phone._register = 200
            await until(lambda: len(of("line")) == 3)
    told = of("line")
    assert [event for event, _ in told] == ["trunk.failed", "trunk.failed", "trunk.registered"]
    assert ["403" in told[0][1], "404" in told[1][1], told[2][1]] == [True, True, ""]
    assert [event for event, _ in of("nowhere")] == ["trunk.failed"]
    assert all(one["server"] and one["at"] for one in program.of("trunk.failed"))
    assert "word" not in str(program.events)
    program.check_signatures()
