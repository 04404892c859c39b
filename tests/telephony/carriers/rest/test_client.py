"""Dialling, hanging up and transferring over HTTP, at a fake of the providers' REST."""

import asyncio
import gzip
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from offhook.telephony.carriers.rest import client_io as rest_io
from offhook.telephony.carriers.rest.client_io import MAX_RESPONSE_BYTES, CarrierRestClient
from offhook.telephony.carriers.rest.request import RestError
from tests.support.ports import free_port
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.carriers.rest.fake_rest_words import (
    KEY_SECRET,
    NUMBER,
    TOKEN,
    TWILIO_KEY,
    settings_for,
    vonage_key,
    vonage_pem,
)
from tests.telephony.carriers.specs import api

TO = "+14155551212"
SIP = "sip:desk@pbx.example.org"
WEBHOOK = "https://voice.example.org/carriers/x/answer"
STATUS = "https://voice.example.org/carriers/x/status"
STREAM = "wss://voice.example.org/carriers/x/stream/ticket"
PROVIDERS = ("twilio", "telnyx", "plivo", "vonage", "exotel")
CONTROLLED = ("twilio", "telnyx", "plivo", "vonage")


@pytest.fixture
async def fake():
    async with FakeRest() as fake:
        yield fake


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def rest(fake, session):
    return lambda provider, **changes: CarrierRestClient(
        api(fake.settings(provider, **changes)), session
    )


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream_url", ["", STREAM])
async def test_a_call_is_placed(fake, rest, provider, stream_url):
    call_id = await rest(provider).dial(TO, "", WEBHOOK, STATUS, 30, stream_url)
    call = fake.calls[call_id]
    assert (call.provider, call.state) == (provider, "queued")
    assert len(fake.asked) == 1


async def test_no_connection_is_kept_for_a_later_call_to_be_lost_on(fake, rest):
    one = rest("twilio")
    for _ in range(2):
        await one.dial(TO, "", WEBHOOK)
    assert [asked.headers["Connection"] for asked in fake.asked] == ["close", "close"]


@pytest.mark.parametrize("provider", CONTROLLED)
async def test_a_call_to_a_sip_uri_is_placed(fake, rest, provider):
    assert await rest(provider).dial(SIP, NUMBER, WEBHOOK) in fake.calls


@pytest.mark.parametrize("provider", CONTROLLED)
async def test_a_call_is_hung_up_and_twice_is_no_error(fake, rest, provider):
    call = fake.call(provider)
    await rest(provider).hang_up(call.id)
    assert call.state == "completed"
    await rest(provider).hang_up(call.id)


@pytest.mark.parametrize("provider", CONTROLLED)
async def test_a_call_that_rings_is_hung_up(fake, rest, provider):
    one = rest(provider)
    call_id = await one.dial(TO, "", WEBHOOK)
    await one.hang_up(call_id)
    assert fake.calls[call_id].state == "completed"


@pytest.mark.parametrize("provider", CONTROLLED)
@pytest.mark.parametrize("target", [TO, SIP])
async def test_a_call_is_transferred_and_hung_up(fake, rest, provider, target):
    call, other = fake.call(provider), fake.call(provider)
    one = rest(provider)
    await one.transfer(call.id, target, STATUS)
    assert target.lstrip("+") in str(call.transferred).replace("%3A", ":").replace("%40", "@")
    await one.hang_up(call.id)
    assert call.state == "completed"
    assert (other.state, other.transferred) == ("in-progress", None)


@pytest.mark.parametrize("provider", CONTROLLED)
async def test_a_call_that_has_ended_cannot_be_transferred(fake, rest, provider):
    call = fake.call(provider, "completed")
    with pytest.raises(RestError, match="the call has ended"):
        await rest(provider).transfer(call.id, TO, STATUS)


async def test_a_call_of_exotel_is_hung_up_by_its_stream_alone(fake, rest):
    call, one = fake.call("exotel"), rest("exotel")
    assert not one.api.ends_calls
    with pytest.raises(RestError, match="Connect applet"):
        await one.transfer(call.id, TO)
    assert fake.asked == []


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_wrong_credentials_are_named(fake, rest, provider):
    other = {"telnyx": {"api_key": "KEYx"}, "vonage": {"account": "other"}}
    one = rest(provider, **other.get(provider, {"secret": "wrong"}))
    with pytest.raises(RestError, match="wrong credentials: check ") as error:
        await one.dial(TO, "", WEBHOOK, stream_url=STREAM)
    assert error.value.status == 401
    assert "wrong'" not in str(error.value)
    if provider in CONTROLLED:
        with pytest.raises(RestError, match="wrong credentials"):
            await one.hang_up(fake.call(provider).id)


async def test_twilio_knows_a_key_of_the_account_too(fake, rest):
    one = rest("twilio", secret="not-needed", api_key=f"{TWILIO_KEY}:{KEY_SECRET}")
    assert await one.dial(TO, "", WEBHOOK) in fake.calls


@pytest.mark.parametrize(
    ("to", "caller", "text"),
    [
        ("+15005550001", "", "is not valid: check it and its country code"),
        ("+15005550002", "", "cannot be reached"),
        ("+15005550003", "", "Voice Geographic Permissions"),
        ("+15005550004", "", "may not call this number"),
        (TO, "+15005550001", "caller id is not valid: check number"),
        (TO, "+15005550009", "nor verified: check number"),
    ],
)
async def test_the_numbers_that_twilio_gives_for_tests_fail_as_they_shall(rest, to, caller, text):
    with pytest.raises(RestError, match=text) as error:
        await rest("twilio").dial(to, caller, WEBHOOK)
    assert error.value.status == 400


@pytest.mark.parametrize("provider", CONTROLLED)
async def test_an_id_of_another_provider_hangs_up_nothing(fake, rest, provider):
    other = fake.call("exotel")
    with suppress(RestError):  # Telnyx says that it knows no such call; to others it has ended
        await rest(provider).hang_up(other.id)
    assert other.state == "in-progress"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "text"), [(429, "try again in a few seconds"), (503, "try again later")]
)
async def test_a_provider_that_is_busy_or_broken_is_not_asked_again(
    fake, rest, provider, status, text
):
    fake.answer_next(status, "<html><body>Bad Gateway</body></html>")
    with pytest.raises(RestError, match=text):
        await rest(provider).dial(TO, "", WEBHOOK)
    assert len(fake.asked) == 1


@pytest.mark.parametrize("said", ["", "<html>Welcome</html>", "[]", "{}", "\0"])
async def test_an_answer_that_is_no_json_is_an_error(fake, rest, said):
    fake.answer_next(200, said)
    with pytest.raises(RestError, match="no call id: check rest_url"):
        await rest("twilio").dial(TO, "", WEBHOOK)


async def test_a_redirect_is_not_followed_with_our_credentials(fake, rest):
    async with FakeRest() as other:
        fake.answer_next(307, Location=f"{other.url}/v1/calls")
        with pytest.raises(RestError, match="unexpected redirect"):
            await rest("vonage").dial(TO, "", WEBHOOK)
        assert other.asked == []


async def test_an_answer_without_end_is_not_read_to_its_end(fake, rest):
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while sent < 100 * MAX_RESPONSE_BYTES:
                await response.write(b" " * 65536)
                sent += 65536
        return response

    fake.next.append(flood)
    with pytest.raises(RestError, match=f"longer than {MAX_RESPONSE_BYTES} bytes"):
        await rest("twilio").dial(TO, "", WEBHOOK)
    assert sent < 50 * MAX_RESPONSE_BYTES


async def test_nor_is_one_that_is_small_when_packed(fake, rest):
    packed = gzip.compress(bytes(100 * MAX_RESPONSE_BYTES))
    fake.answer_next(200, packed, Content_Encoding="gzip")
    with pytest.raises(RestError):
        await rest("twilio").dial(TO, "", WEBHOOK)
    assert fake.asked[0].headers["Accept-Encoding"] == "identity"


async def test_a_provider_that_does_not_answer_is_waited_for_so_long(fake, rest, monkeypatch):
    monkeypatch.setattr(rest_io, "RESPONSE_TIMEOUT_S", 0.2)
    fake.silent.set()
    with pytest.raises(RestError, match=r"within 0\.2 s: the request may have been carried out"):
        await rest("plivo").dial(TO, "", WEBHOOK)
    assert len(fake.asked) == 1


async def test_one_that_nobody_can_connect_to_says_where(session, monkeypatch):
    port = free_port()
    monkeypatch.setattr(rest_io, "RETRY_DELAY_S", 0)
    one = CarrierRestClient(api(settings_for("telnyx", f"http://127.0.0.1:{port}")), session)
    for ask in (one.dial(TO, "", WEBHOOK), one.hang_up("v3:x"), one.transfer("v3:x", TO)):
        with pytest.raises(RestError, match=f"connection refused .127.0.0.1:{port}.*check rest"):
            await ask


async def test_a_name_that_nobody_has_says_so(session, monkeypatch):
    monkeypatch.setattr(rest_io, "RETRY_DELAY_S", 0)
    one = CarrierRestClient(api(settings_for("telnyx", "https://api.offhook.invalid")), session)
    with pytest.raises(RestError, match=r"api\.offhook\.invalid not found in DNS"):
        await one.hang_up("v3:x")


async def test_only_a_hang_up_is_tried_again(session, monkeypatch):
    monkeypatch.setattr(rest_io, "RETRY_DELAY_S", 0)
    asked = 0

    async def drop(reader, writer):
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.close()

    async with await asyncio.start_server(drop, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        one = CarrierRestClient(api(settings_for("telnyx", f"http://127.0.0.1:{port}")), session)
        for ask, times in (
            (one.hang_up("v3:x"), 2),
            (one.dial(TO, "", WEBHOOK), 1),
            (one.transfer("v3:x", TO), 1),
        ):
            asked = 0
            with pytest.raises(RestError, match="closed the connection"):
                await ask
            assert asked == times


async def test_a_hang_up_succeeds_at_the_second_try(fake, rest, monkeypatch):
    monkeypatch.setattr(rest_io, "RETRY_DELAY_S", 0)

    async def drop(request: web.Request) -> web.StreamResponse:
        request.transport.close()
        return web.Response()

    call = fake.call("vonage")
    fake.next.append(drop)
    await rest("vonage").hang_up(call.id)
    assert call.state == "completed"
    assert len(fake.asked) == 2


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/9 what\r\n\r\n", b"\0" * 100])
async def test_what_does_not_speak_http_is_an_error(session, said):
    async def speak(reader, writer):
        writer.write(said)
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        one = CarrierRestClient(api(settings_for("twilio", f"http://127.0.0.1:{port}")), session)
        with pytest.raises(RestError, match="cannot be reached"):
            await one.dial(TO, "", WEBHOOK)


async def test_tls_with_what_has_none_is_an_error(fake, session):
    one = CarrierRestClient(
        api(settings_for("twilio", fake.url.replace("http:", "https:"))), session
    )
    with pytest.raises(RestError, match=r"TLS with 127\.0\.0\.1 failed"):
        await one.dial(TO, "", WEBHOOK)


async def test_a_certificate_of_nobody_is_not_trusted(session, tmp_path):
    context = self_signed(tmp_path)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        one = CarrierRestClient(api(settings_for("twilio", f"https://127.0.0.1:{port}")), session)
        with pytest.raises(RestError, match=r"certificate of 127\.0\.0\.1 is not trusted"):
            await one.dial(TO, "", WEBHOOK)


async def test_nothing_is_asked_when_the_number_cannot_be_called(fake, rest):
    with pytest.raises(RestError, match="not a valid destination"):
        await rest("plivo").dial("+14155551212<+19005550000", "", WEBHOOK)
    with pytest.raises(RestError, match="set the carrier's number"):
        await rest("plivo", number="").dial(TO, "", WEBHOOK)
    assert fake.asked == []


async def test_vonages_private_key_may_be_in_a_file(fake, rest, tmp_path):
    path = tmp_path / "private.key"
    path.write_text(vonage_pem())
    assert await rest("vonage", api_key=str(path)).dial(TO, "", WEBHOOK) in fake.calls


async def test_a_file_that_is_not_there_is_said_at_the_start(rest, tmp_path):
    with pytest.raises(RestError, match="api_key names: No such file"):
        rest("vonage", api_key=str(tmp_path / "gone.key"))
    (tmp_path / "other.key").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(RestError, match="api_key names: not a text file"):
        rest("vonage", api_key=str(tmp_path / "other.key"))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_secret_is_in_what_goes_wrong(fake, rest, provider):
    fake.answer_next(400, "no")
    one = rest(provider)
    with pytest.raises(RestError) as error:
        await one.dial(TO, "", WEBHOOK, stream_url=STREAM)
    assert TOKEN not in f"{error.value!r} {error.value.__cause__!r}"
    assert all(TOKEN not in asked.path for asked in fake.asked)


def self_signed(folder) -> ssl.SSLContext:
    """A server's context with a certificate that nobody vouches for."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(vonage_key().public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(vonage_key(), hashes.SHA256())
    )
    chain, key = folder / "certificate.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(Encoding.PEM))
    key.write_text(vonage_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context
