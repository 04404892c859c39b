"""WhatsApp Business Calling by SIP as a trunk, against a far end that keeps Meta's rules: TLS,
digest by number, Opus in DTLS-SRTP to an ICE-lite agent or in SDES."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from time import monotonic

import pytest

from offhook.media.leg import LegError
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.messages.sdp import parse
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import THEIR_TONE, ToneHost, endpoint, port_of
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound
from tests.telephony.sip.services import whatsapp
from tests.telephony.sip.services.authority import Authority
from tests.telephony.sip.services.service import known_hosts
from tests.telephony.sip.services.sounds import lite_sound, sdes_sound
from tests.telephony.sip.services.whatsapp import (
    CONSUMER,
    NUMBER,
    OURS,
    PASSWORD,
    SERVER,
    WhatsApp,
)

OTHER_TONE = 620
AT = "127.0.0.2"
"""Where its name leads."""
FROM = "127.0.0.3"
"""Where it calls from: another address of many."""


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def names(monkeypatch, tmp_path):
    known_hosts(monkeypatch, tmp_path, wa_meta_test=AT)


def trunk(port, **settings):
    return Trunk(
        "whatsapp",
        server=f"sip:{SERVER}:{port};transport=tls",
        transport="TLS",
        username=NUMBER,
        password=PASSWORD,
        caller_id=f"+{NUMBER}",
        caller_id_header="from",
        public_name=OURS,
        headers=("x-wa-meta-wacid", "x-wa-meta-cta-payload"),
        codecs=("opus", "pcmu", "pcma"),
        **{"webrtc": True, "srtp": "required", "reinvites": False, **settings},
    )


class SharedPort(ToneHost):
    """All calls with WebRTC media use one port, as edges may."""

    def __init__(self, port):
        super().__init__()
        self._port = port

    def webrtc_leg(self, call_id):
        return PeerLeg(call_id, ice_port=self._port)


@pytest.fixture(params=["own ports", "one port"])
async def edge(request):
    if request.param == "own ports":
        yield ToneHost()
        return
    port = IcePort(free_port())
    await port.open()
    yield SharedPort(port)
    await port.close()


@asynccontextmanager
async def connected(authority, keys="DTLS", others=(), host=None, **settings):
    service = WhatsApp(authority.issue(SERVER), authority.file, AT)
    service.keys = keys
    certificate, key = authority.issue(OURS)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.listening())
        opening = endpoint(
            host,
            tls=0,
            certificate=certificate,
            key=key,
            authorities=authority.file,
            trunks=(trunk(service.port, **settings), *others),
        )
        sip, host = await stack.enter_async_context(opening)
        yield sip, host, service


async def calls_with_password(service, sip, sdp):
    """The service calls us, and is asked for the password; our answer."""
    await service.connect(sip, OURS, FROM)
    far = service.calls(port_of(sip, "TLS"))
    invite = far.invite(sdp, *whatsapp.headers())
    challenge = await far.response(401)
    far.ack_refusal(challenge)
    again = DigestClient(NUMBER, PASSWORD).authorize(challenge, invite)
    given = again.headers.get("Authorization")
    far.invite(sdp, *whatsapp.headers(), ("Authorization", given))
    answer = await far.response(200)
    far.ack(answer)
    return far, sdp_of(answer)


async def both_hear(line, talk, since):
    await line.is_heard(talk)
    await until(lambda: line.hears(since=since))


async def hangs_up(talk, far):
    leaving = asyncio.create_task(talk.leg.hang_up("done"))
    bye = await far.is_hung_up()
    await leaving
    return bye


# --- calls in ---


async def test_a_consumer_calls_with_webrtc_media_and_hangs_up(authority, names, edge):
    async with connected(authority, host=edge) as (sip, host, service):
        with lite_sound() as line:
            far, answer = await calls_with_password(service, sip, whatsapp.webrtc_sdp(line))
            line.aim(answer)
            talk = await host.talk()
            assert (talk.leg.info.caller, talk.leg.info.called) == (CONSUMER, f"+{NUMBER}")
            assert talk.leg.info.trunk == "whatsapp"
            assert talk.leg.info.headers["x-wa-meta-wacid"] == "wacid.HBgLMTIxOTU1NTA3MTQ"
            assert talk.leg.info.headers["x-wa-meta-cta-payload"] == "order=17"
            assert far.target.startswith(f"sip:{NUMBER}@{OURS}:{port_of(sip, 'TLS')}")
            [media] = parse(answer).resolved()
            assert media.setup == "active"  # DTLS is ours to begin
            await asyncio.wait_for(line.keyed.wait(), HANGS_S)
            assert set(line.checks) == {"controlling"}
            await both_hear(line, talk, monotonic())
            line.key(5, 126)
            await until(lambda: talk.keys == "5")

            with pytest.raises(LegError, match="cannot be put on hold"):
                await talk.leg.hold()
            await both_hear(line, talk, monotonic())
            assert "INVITE" not in far.came
            await far.hang_up(("x-wa-meta-call-duration", "3"))
            await until(lambda: host.records)
            assert host.records[0].ended_by == "remote"
            assert not service.refused


async def test_a_consumer_calls_with_sdes_media_and_we_hang_up(authority, names):
    async with connected(authority, "SDES", webrtc=False) as (sip, host, service):
        with sdes_sound("opus", 111) as line:
            far, answer = await calls_with_password(service, sip, whatsapp.sdes_sdp(line))
            line.aim(answer)
            talk = await host.talk()
            await both_hear(line, talk, monotonic())
            bye = await hangs_up(talk, far)
            assert bye.uri.user == CONSUMER
        await until(lambda: host.records)
        assert host.records[0].codec == "opus"


async def test_without_the_password_nobody_calls_by_its_number(authority, names):
    async with connected(authority) as (sip, host, service):
        await service.connect(sip, OURS, FROM)
        far = service.calls(port_of(sip, "TLS"))
        with lite_sound() as line:
            sdp = whatsapp.webrtc_sdp(line)
            invite = far.invite(sdp, *whatsapp.headers())
            challenge = await far.response(401)
            far.ack_refusal(challenge)
            again = DigestClient(NUMBER, "guessed").authorize(challenge, invite)
            given = again.headers.get("Authorization")
            far.invite(sdp, *whatsapp.headers(), ("Authorization", given))
            far.ack_refusal(await far.response(401))
        assert not host.talks


# --- calls out ---


async def test_we_call_a_consumer_with_webrtc_media_and_hang_up(authority, names, edge):
    async with connected(authority, host=edge) as (sip, host, service):
        call = sip.dial(Dial(CONSUMER))
        far = service.peer
        invite = await far.asked("INVITE")
        assert service.refused == [("INVITE", 407, "Proxy Authentication Required")]
        assert str(invite.uri) == f"sip:{CONSUMER}@{SERVER}:{service.port};transport=tls"
        assert invite.from_.uri.user == f"+{NUMBER}"
        assert invite.contacts[0].uri.host == OURS
        assert "Session-Expires" not in invite.headers
        [media] = parse(sdp_of(invite)).resolved()
        assert media.protocol == "UDP/TLS/RTP/SAVPF"
        assert media.setup == "actpass"
        assert not media.attribute("crypto")
        assert [m.name.lower() for m in media.payloads.values()][:2] == ["opus", "pcmu"]
        assert "g722" not in sdp_of(invite).lower()
        with lite_sound() as line:
            answer = whatsapp.webrtc_answer(sdp_of(invite), line)
            line.aim(sdp_of(invite))
            far.learn(invite)
            far.reply(invite, 180)
            far.reply(invite, 200, *service.answer_routes(), sdp=answer)
            ack = await far.asked("ACK")
            assert [route.uri.host for route in ack.routes] == [SERVER, "onevc-sip-proxy.meta.test"]
            talk = await host.talk()
            await asyncio.wait_for(line.keyed.wait(), HANGS_S)
            assert set(line.checks) == {"controlling"}
            await both_hear(line, talk, monotonic())
            with pytest.raises(LegError, match="cannot be put on hold"):
                await talk.leg.hold()
            bye = await hangs_up(talk, far)
            assert str(bye.uri).startswith(f"sip:{CONSUMER}@{SERVER}")
        assert call.state == "ended"
        assert [progress.state for progress in call.progress] == [
            "dialing",
            "ringing",
            "answered",
            "ended",
        ]
        assert service.refused[1:] == []
        await until(lambda: host.records)
        assert [attempt.media for attempt in host.records[0].attempts] == ["UDP/TLS/RTP/SAVPF"]


async def test_we_call_a_consumer_with_sdes_media(authority, names):
    async with connected(authority, "SDES", webrtc=False) as (sip, host, service):
        sip.dial(Dial(CONSUMER))
        far = service.peer
        invite = await far.asked("INVITE")
        opus, events = whatsapp.numbers_of(sdp_of(invite))
        with sdes_sound("opus", opus) as line:
            line.aim(sdp_of(invite))
            far.learn(invite)
            answer = whatsapp.sdes_sdp(line, opus, events)
            far.reply(invite, 200, *service.answer_routes(), sdp=answer)
            await far.asked("ACK")
            talk = await host.talk()
            await both_hear(line, talk, monotonic())
            with pytest.raises(LegError, match="reinvites = false"):
                await talk.leg.hold()
            await both_hear(line, talk, monotonic())
            await hangs_up(talk, far)
            assert far.came.count("INVITE") == 1


async def test_where_re_invites_are_not_known_to_be_refused_the_call_goes_on(authority, names):
    async with connected(authority, "SDES", webrtc=False, reinvites=True) as (sip, host, service):
        sip.dial(Dial(CONSUMER))
        far = service.peer
        invite = await far.asked("INVITE")
        assert "Session-Expires" in invite.headers
        opus, events = whatsapp.numbers_of(sdp_of(invite))
        with sdes_sound("opus", opus) as line:
            line.aim(sdp_of(invite))
            far.learn(invite)
            answer = whatsapp.sdes_sdp(line, opus, events)
            far.reply(invite, 200, *service.answer_routes(), sdp=answer)
            await far.asked("ACK")
            talk = await host.talk()
            holding = asyncio.create_task(talk.leg.hold())
            far.reply(await far.asked("INVITE"), 500)  # as it does
            with pytest.raises(LegError, match="the offer was rejected: 500"):
                await holding
            await both_hear(line, talk, monotonic())
            await hangs_up(talk, far)


async def test_the_same_offer_goes_to_its_next_server(authority, names):
    other = WhatsApp(authority.issue(SERVER), authority.file, AT)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(other.listening())
        opening = connected(authority, backup_servers=(f"{SERVER}:{other.port}",))
        sip, host, service = await stack.enter_async_context(opening)
        service.busy = True
        sip.dial(Dial(CONSUMER))
        invite = await other.peer.asked("INVITE")
        assert service.refused == [("INVITE", 503, "Service Unavailable")]
        with lite_sound() as line:
            answer = whatsapp.webrtc_answer(sdp_of(invite), line)
            line.aim(sdp_of(invite))
            other.peer.learn(invite)
            other.peer.reply(invite, 200, *other.answer_routes(), sdp=answer)
            await other.peer.asked("ACK")
            talk = await host.talk()
            await asyncio.wait_for(line.keyed.wait(), HANGS_S)
            await both_hear(line, talk, monotonic())
            await hangs_up(talk, other.peer)


# --- transfers ---


async def test_a_consumer_is_transferred_to_a_desk_of_another_trunk(authority, names):
    async with udp_peer() as desk:
        pbx = Trunk("pbx", server=f"127.0.0.1:{desk.port}", options_seconds=0)
        async with connected(authority, others=(pbx,)) as (sip, host, service):
            with lite_sound() as line, sound() as phone:
                far, answer = await calls_with_password(service, sip, whatsapp.webrtc_sdp(line))
                line.aim(answer)
                talk = await host.talk()
                await asyncio.wait_for(line.keyed.wait(), HANGS_S)
                await both_hear(line, talk, monotonic())
                host.leave(talk)
                moving = asyncio.create_task(talk.leg.transfer(f"sip:200@127.0.0.1:{desk.port}"))
                invite = await desk.asked("INVITE")
                assert "REFER" not in far.came
                phone.aim(sdp_of(invite))
                desk.learn(invite)
                desk.reply(invite, 200, sdp=phone.sdp())
                await desk.asked("ACK")
                await moving
                start = monotonic()
                saying = asyncio.gather(line.says(2.0), phone.says(2.0, OTHER_TONE))
                await until(lambda: line.hears(OTHER_TONE, since=start))
                await until(lambda: phone.hears(THEIR_TONE, since=start))
                await saying
                await desk.hang_up()
                await far.is_hung_up()
                await until(lambda: len(host.records) == 2)
                assert {record.trunk for record in host.records} == {"whatsapp", "pbx"}


# --- far ends that break the rules ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sdp: sdp.replace("a=fingerprint", "a=x-fingerprint"), "has no a=fingerprint"),
        (lambda sdp: sdp.replace("a=setup:passive", "a=setup:actpass"), "a=setup:actpass"),
        (lambda sdp: sdp.replace("opus/48000/2", "speex/16000"), "cannot use the answer"),
    ],
    ids=["no-fingerprint", "no-role", "no-codec"],
)
async def test_an_answer_that_cannot_be_used_ends_the_call_with_words(
    authority, names, change, words
):
    async with connected(authority) as (sip, host, service):
        call = sip.dial(Dial(CONSUMER))
        far = service.peer
        invite = await far.asked("INVITE")
        with lite_sound() as line:
            answer = change(whatsapp.webrtc_answer(sdp_of(invite), line))
            far.learn(invite)
            far.reply(invite, 200, *service.answer_routes(), sdp=answer)
            await far.is_hung_up()
        reason = [progress async for progress in call.events()][-1].reason
        assert "no acceptable media" in reason
        assert words in reason
        assert not host.talks


async def test_a_number_that_is_set_to_the_other_keys_says_so(authority, names):
    async with connected(authority, "SDES") as (sip, _, service):
        call = sip.dial(Dial(CONSUMER))
        ended = [progress async for progress in call.events()][-1]
        assert ended.status == 488
        assert service.refused[-1] == ("INVITE", 488, "No SDES")


async def test_a_wrong_password_is_said_to(authority, names):
    async with connected(authority) as (sip, _, service):
        sip.reload(replace_trunk(sip, password="wrong"))
        call = sip.dial(Dial(CONSUMER))
        ended = [progress async for progress in call.events()][-1]
        assert ended.status == 403
        assert service.refused[-1] == ("INVITE", 403, "Wrong password")


def replace_trunk(sip, **settings):
    """Settings with another trunk."""
    [known] = sip.stack.settings.trunks
    return replace(sip.stack.settings, trunks=(replace(known, **settings),))
