"""A provider of somebody else's package: nothing of it is in this repository."""

import asyncio
import sys

import aiohttp
import numpy as np
import pytest

from offhook.media.pcm import RATE_IN
from offhook.telephony.carriers.providers import provider_names
from offhook.web.app.doctor.carriers import examine_carriers
from offhook.web.config.config import Config
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import is_tone
from tests.web.edge.test_carriers import OUR_TONE, THEIR_TONE, carriers, loud, talking, tone

ACME = '''
"""Acme: a webhook in a form, answered with the stream's URL; a stream of L16 at 16 kHz."""

from typing import ClassVar

from offhook.telephony.carriers.auth.signatures import Rejected
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.streams.stream import (
    CarrierError, CarrierStream, Format, Sound, Started,
)
from offhook.telephony.carriers.webhook import CallFields, Reply

L16 = Format("l16", 16000)


class AcmeStream(CarrierStream):
    provider = "acme"
    acknowledges = False
    clears = False

    def receive(self, data):
        if isinstance(data, bytes):
            return [Sound(data)]
        kind, _, call_id = data.partition(" ")
        if kind != "begin":
            raise CarrierError("Acme says " + data)
        return [Started(call_id, call_id, L16, L16)]

    def sound(self, payload):
        return [payload]


class Acme(Provider):
    name = "acme"
    formats: ClassVar = {"l16": (16000,)}
    asks = True
    proves_stream = False
    headers = ("x-acme-",)
    fields = CallFields(("id",), ("caller",), ("called",))

    def authenticate(self, request, now, seen):
        if request.header("x-acme-secret") != self.settings.secret:
            raise Rejected("wrong secret")

    def stream(self, query):
        return AcmeStream()

    def answer(self, stream_url, call, then_url=""):
        return Reply("text/plain", stream_url)

    def refusal(self, reason="busy"):
        return Reply("text/plain", reason)
'''
SECRET = {"X-Acme-Secret": "open sesame"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Acme's package is installed."""
    (tmp_path / "acme_voice.py").write_text(ACME)
    installed = tmp_path / "acme_voice-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-voice\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[offhook.carriers]\nacme = acme_voice:Acme\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("acme_voice", None)


async def says(socket, sound):
    """The caller's side of a stream, 20 ms at a time."""
    for start in range(0, len(sound), 320):
        await socket.send_bytes(sound[start : start + 320].tobytes())
        await asyncio.sleep(0.02)


async def test_a_call_of_it_is_taken(package, monkeypatch):
    assert "acme" in provider_names()
    assert "acme_voice" not in sys.modules
    config = carriers({"provider": "acme", "insecure": False, "secret": "open sesame"})
    async with talking(config, monkeypatch) as (server, talks):
        asked = {"id": "A1", "caller": "+491701", "called": "+493099"}
        refused = await server.client.post("/carriers/acme/voice", data=asked)
        assert refused.status == 403
        answer = await server.client.post("/carriers/acme/voice", data=asked, headers=SECRET)
        url = await answer.text()
        played = []
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as socket:
            await socket.send_str("begin A1")
            saying = asyncio.create_task(says(socket, tone(THEIR_TONE, 16_000, 3)))
            async with asyncio.timeout(HANGS_S):
                while len(loud(played, 16_000)) < 16_000:
                    played.append(np.frombuffer(await socket.receive_bytes(), np.int16))
                while len(loud(talks[0].sounds, RATE_IN)) < RATE_IN:
                    await asyncio.sleep(0.05)
            [call] = (await server.get("/calls"))["calls"]
            assert (call["edge"], call["caller"]) == ("acme", "+491701")
            await saying
        assert is_tone(loud(played, 16_000)[:16_000], 16_000, OUR_TONE)
        assert is_tone(loud(talks[0].sounds, RATE_IN)[:RATE_IN], RATE_IN, THEIR_TONE)


async def test_its_header_fields_are_no_proxys(package, monkeypatch):
    """A carrier that is insecure takes requests of this machine, not those of a proxy."""
    async with talking(carriers({"provider": "acme"}), monkeypatch) as (server, _):
        for headers, status in ((SECRET, 200), ({"X-Other": "1"}, 403)):
            asked = {"id": f"A{status}", "caller": "+491701", "called": "+493099"}
            answer = await server.client.post("/carriers/acme/voice", data=asked, headers=headers)
            assert answer.status == status


def test_its_settings_are_checked_and_explained(package):
    config = carriers({"provider": "acme", "public_url": "http://localhost:1"})
    [found] = examine_carriers(config.carriers, "127.0.0.1")
    assert "insecure" in found.detail
    signed = Config.model_validate({"carriers": [{"provider": "acme", "secret": "x"}]})
    [found] = examine_carriers(signed.carriers, "127.0.0.1")
    assert found.detail == "https://YOUR-HOST/carriers/acme/voice"
    for wrong, says in (
        ({}, "secret is required"),
        ({"secret": "x", "encoding": "opus"}, "encoding must be one of l16"),
    ):
        with pytest.raises(ValueError, match=says):
            Config.model_validate({"carriers": [{"provider": "acme", **wrong}]})


def test_a_package_that_is_broken_is_named(package, tmp_path):
    (tmp_path / "acme_voice.py").write_text("import nothing_that_is_installed\n")
    with pytest.raises(ValueError, match=r"provider 'acme' cannot be loaded: .*nothing_that_is"):
        Config.model_validate({"carriers": [{"provider": "acme", "secret": "x"}]})


def test_nobodys_name_is_refused_with_all_there_are(package):
    with pytest.raises(ValueError, match=r"unknown provider 'nobody': use one of .*, acme"):
        Config.model_validate({"carriers": [{"provider": "nobody", "secret": "x"}]})
