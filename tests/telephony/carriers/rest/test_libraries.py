"""The providers' own libraries ask a fake of their REST the same as we do, and understand it.

So the fake speaks as the providers do, and what it takes from us they take too.
"""

import asyncio
from base64 import b64encode
from importlib import import_module
from xml.etree import ElementTree

import aiohttp
import pytest

from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.streams.stream import Format
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.carriers.rest.fake_rest_words import (
    NUMBER,
    PLIVO_ID,
    TELNYX_APPLICATION,
    TELNYX_KEY,
    TOKEN,
    TWILIO_SID,
    VONAGE_APPLICATION,
    vonage_pem,
)
from tests.telephony.carriers.specs import api

TO = "+14155551212"
SIP = "sip:desk@pbx.example.org"
WEBHOOK = "https://voice.example.org/carriers/x/answer"
STATUS = "https://voice.example.org/carriers/x/status"
STREAM = "wss://voice.example.org/carriers/x/stream/ticket"


@pytest.fixture
async def fake():
    async with FakeRest() as fake:
        yield fake


@pytest.fixture
async def rest(fake):
    async with aiohttp.ClientSession() as session:
        yield lambda provider: CarrierRestClient(api(fake.settings(provider)), session)


def to_fake(session, url):
    """Has a session of `requests` ask the fake whatever https:// it is told to ask."""
    requests = pytest.importorskip("requests")

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, request, **kwargs):
            request.url = url + request.path_url
            return super().send(request, **kwargs)

    session.mount("https://", Adapter())


def only_theirs(asked, but=()):
    """What the library told and we did not; all else must be the same, except the values named."""
    ours, theirs = asked
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    told = {name: value for name, value in ours.values.items() if name not in but}
    assert {name: theirs.values.get(name) for name in told} == told
    assert {n: theirs.lists[n] for n in ours.lists if n not in but} == {
        n: values for n, values in ours.lists.items() if n not in but
    }
    return theirs.values.keys() - ours.values.keys()


async def test_twilios_own_library_asks_the_same(fake, rest):
    client_of = pytest.importorskip("twilio.rest").Client
    http = import_module("twilio.http.http_client").TwilioHttpClient()
    to_fake(http.session, fake.url)
    ours = rest("twilio")
    theirs = client_of(TWILIO_SID, TOKEN, http_client=http)

    call_id = await ours.dial(TO, "", WEBHOOK, STATUS, 30)
    call = await asyncio.to_thread(
        theirs.calls.create,
        to=TO,
        from_=NUMBER,
        url=WEBHOOK,
        method="POST",
        timeout=30,
        status_callback=STATUS,
        status_callback_method="POST",
        status_callback_event=["initiated", "ringing", "answered", "completed"],
    )
    assert call.sid in fake.calls
    assert only_theirs(fake.asked) == set()
    fake.asked.clear()

    fake.calls[call_id].state = "in-progress"
    await ours.transfer(call_id, TO, STATUS)
    voice = import_module("twilio.twiml.voice_response")
    twiml, dial = voice.VoiceResponse(), voice.Dial(action=STATUS, method="POST")
    dial.number(TO)
    twiml.append(dial)
    await asyncio.to_thread(theirs.calls(call_id).update, twiml=str(twiml))
    written, read = (ElementTree.fromstring(one.values["Twiml"]) for one in fake.asked)
    assert ElementTree.tostring(written) == ElementTree.tostring(read)
    assert only_theirs(fake.asked, but=["Twiml"]) == set()
    fake.asked.clear()

    await ours.hang_up(call_id)
    with pytest.raises(import_module("twilio.base.exceptions").TwilioRestException) as error:
        await asyncio.to_thread(theirs.calls(call_id).update, status="completed")
    assert (error.value.status, error.value.code) == (400, 21220)
    assert only_theirs(fake.asked) == set()


@pytest.mark.slow
async def test_telnyx_own_library_asks_the_same(fake, rest):
    telnyx = pytest.importorskip("telnyx")
    ours = rest("telnyx")
    async with telnyx.AsyncTelnyx(
        api_key=TELNYX_KEY, base_url=f"{fake.url}/v2", max_retries=0
    ) as theirs:
        await ours.dial(TO, "", WEBHOOK)
        placed = await theirs.texml.calls.create(
            TELNYX_APPLICATION, from_=NUMBER, to=TO, url=WEBHOOK
        )
        assert placed.call_sid in fake.calls
        assert only_theirs(fake.asked, but=["Timeout"]) == set()
        fake.asked.clear()

        call_id, state = placed.call_sid, b64encode(f"offhook:{placed.call_sid}".encode()).decode()
        await ours.transfer(call_id, SIP, STATUS)
        command = theirs.calls.actions.transfer(
            call_id, to=SIP, webhook_url=STATUS, target_leg_client_state=state
        )
        assert (await command).data.result == "ok"
        assert only_theirs(fake.asked) == set()
        fake.asked.clear()

        await ours.connect(call_id, STREAM, Format("pcmu", 8000))
        command = theirs.calls.actions.start_streaming(
            call_id,
            stream_url=STREAM,
            stream_track="inbound_track",
            stream_codec="PCMU",
            stream_bidirectional_mode="rtp",
            stream_bidirectional_codec="PCMU",
            stream_bidirectional_sampling_rate=8000,
        )
        assert (await command).data.result == "ok"
        assert only_theirs(fake.asked) == set()
        fake.asked.clear()

        await ours.hang_up(call_id)
        with pytest.raises(telnyx.UnprocessableEntityError, match="90018"):
            await theirs.calls.actions.hangup(call_id)
        assert only_theirs(fake.asked) == set()


async def test_plivos_own_library_asks_the_same(fake, rest):
    plivo = pytest.importorskip("plivo")
    ours = rest("plivo")
    theirs = plivo.RestClient(PLIVO_ID, TOKEN)
    to_fake(theirs.session, fake.url)

    call_id = await ours.dial(TO, "", WEBHOOK, STATUS, 30)
    placed = await asyncio.to_thread(
        theirs.calls.create,
        from_=NUMBER.lstrip("+"),
        to_=TO.lstrip("+"),
        answer_url=WEBHOOK,
        answer_method="POST",
        ring_timeout=30,
        ring_url=STATUS,
        hangup_url=STATUS,
    )
    assert placed.request_uuid in fake.calls
    # Besides, the library tells the defaults of what we leave out.
    assert only_theirs(fake.asked) <= {
        "error_if_parent_not_found",
        "fallback_method",
        "machine_detection_method",
        "machine_detection_time",
    }
    fake.asked.clear()

    await ours.transfer(call_id, TO, STATUS)
    url = fake.calls[call_id].transferred
    await asyncio.to_thread(
        theirs.calls.transfer, call_id, legs="aleg", aleg_url=url, aleg_method="POST"
    )
    assert only_theirs(fake.asked) <= {"call_uuid"}  # which is in the path too
    fake.asked.clear()

    await ours.hang_up(call_id)
    with pytest.raises(plivo.exceptions.ResourceNotFoundError, match="not found"):
        await asyncio.to_thread(theirs.calls.hangup, call_id)
    assert only_theirs(fake.asked) <= {"call_uuid"}


async def test_vonages_own_library_asks_the_same(fake, rest):
    voice = pytest.importorskip("vonage_voice")
    http = import_module("vonage_http_client")
    models = import_module("vonage_voice.models")
    ours = rest("vonage")
    auth = http.Auth(application_id=VONAGE_APPLICATION, private_key=vonage_pem())
    client = http.HttpClient(auth)
    to_fake(client._session, fake.url)
    theirs = voice.Voice(client)

    call_id = await ours.dial(TO, "", WEBHOOK, STATUS, 30)
    placed = await asyncio.to_thread(
        theirs.create_call,
        models.CreateCallRequest(
            to=[models.ToPhone(number=TO.lstrip("+"))],
            from_=models.Phone(number=NUMBER.lstrip("+")),
            answer_url=[WEBHOOK],
            answer_method="POST",
            event_url=[STATUS],
            event_method="POST",
            ringing_timer=30,
        ),
    )
    assert placed.uuid in fake.calls
    assert only_theirs(fake.asked) == set()
    fake.asked.clear()

    await ours.transfer(call_id, SIP, STATUS)
    endpoints = import_module("vonage_voice.models.connect_endpoints")
    ncco = models.Connect(
        endpoint=[endpoints.SipEndpoint(uri=SIP)],
        from_=NUMBER.lstrip("+"),
        eventType="synchronous",
        eventUrl=[STATUS],
    )
    await asyncio.to_thread(theirs.transfer_call_ncco, call_id, [ncco])
    assert only_theirs(fake.asked) == set()
    fake.asked.clear()

    await ours.hang_up(call_id)
    with pytest.raises(import_module("vonage_http_client.errors").NotFoundError):
        await asyncio.to_thread(theirs.hangup, call_id)
    assert only_theirs(fake.asked) == set()
