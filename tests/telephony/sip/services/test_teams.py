"""Microsoft Teams Direct Routing as a trunk, against a far end that keeps Teams' rules: by TLS with
certificates both ways, and with sound."""

import asyncio
import os
import socket
import ssl
import threading
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from time import monotonic
from urllib.parse import quote

import pytest

from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import until
from tests.telephony.sip.ends import crypto, key_in
from tests.telephony.sip.phones import THEIR_TONE, endpoint, port_of
from tests.telephony.sip.scripted_peer import HOST
from tests.telephony.sip.services import teams
from tests.telephony.sip.services.authority import Authority
from tests.telephony.sip.services.service import known_hosts
from tests.telephony.sip.services.sounds import SUITE, sdes_sound
from tests.telephony.sip.services.teams import IN_DIALOG, NAMES, SBC, Teams

OTHER_TONE = 620
USER = "+14255550100"
REFERRED_BY = (
    f"<sip:{NAMES[0]}:5061;x-m=8:orgid:fa273707-89ea-4085-9903-ddf4ab23636b;"
    "x-t=4dcafc31-d434-426b-a0bb-c376fb36061a;x-ti=b712d12c-77e8-4017-b50d-6d321507aa28;"
    "x-tt=aHR0cHM6Ly9hcGktZHUtYS11c2VhLnBzdG5odWIubWljcm9zb2Z0LmNvbS92MS9uZ2MvY2FsbG5vdGlmaWNhdGlv"
    "bj9kY2k9NmZhODEwNGNmNGIzNDk4NWJmNzQwMDk3MzA2YjkxNDUmcT1hSFIwY0hNNkx5OWhjR2t0WkhVdFlTMTFjMlZo%3D>"
)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def names(monkeypatch, tmp_path):
    """Each of Teams' names leads to an address of its own."""
    known_hosts(
        monkeypatch,
        tmp_path,
        sip_pstnhub_test="127.0.0.1",
        sip2_pstnhub_test="127.0.0.2",
        sip3_pstnhub_test="127.0.0.3",
        **{IN_DIALOG.replace(".", "_"): "127.0.0.1"},
    )


def trunk(*ports, **settings):
    places = [f"{name}:{port}" for name, port in zip(NAMES, ports, strict=False)]
    return Trunk(
        "teams",
        addresses=("127.0.0.0/8",),
        server=places[0],
        backup_servers=tuple(places[1:]),
        transport="TLS",
        public_name=SBC,
        srtp="required",
        headers=("X-MS-TenantId", "X-MS-UserLocation"),
        **settings,
    )


def edge(authority, *trunks, ours=SBC):
    """Our endpoint, with a certificate for `ours`."""
    certificate, key = authority.issue(ours)
    files = {"certificate": certificate, "key": key, "authorities": authority.file}
    return endpoint(udp=None, tcp=None, tls=0, trunks=trunks, **files)


@asynccontextmanager
async def connected(authority, count=1, ours=SBC, **settings):
    """Our endpoint and `count` data centres, which have answered its OPTIONS."""
    async with AsyncExitStack() as stack:
        services = []
        for number in range(count):
            identity = authority.issue("*.pstnhub.test")
            service = Teams(identity, authority.file, f"127.0.0.{number + 1}")
            services.append(await stack.enter_async_context(service.listening()))
        ports = [service.port for service in services]
        opening = edge(authority, trunk(*ports, **settings), ours=ours)
        sip, host = await stack.enter_async_context(opening)
        await until(lambda: all(s.probes or s.refused for s in services))
        yield sip, host, services


@asynccontextmanager
async def called(authority, **settings):
    """A call from a Teams user, with sound."""
    async with connected(authority, **settings) as (sip, host, [service]):
        await service.connect(sip, SBC)
        far = service.calls(port_of(sip, "TLS"))
        with sdes_sound("g722", 9) as line:
            answer = await far.call(teams.sdp(line), *teams.headers())
            line.aim(answer)
            yield sip, host, service, far, line, answer


async def both_hear(line, talk, since):
    await line.is_heard(talk)
    await until(lambda: line.hears(since=since))


# --- who we are to Teams ---


async def test_our_options_name_us_and_list_what_we_support(authority, names):
    async with connected(authority) as (sip, _, [service]):
        [probe] = service.probes
        port = port_of(sip, "TLS")
        assert str(probe.contacts[0].uri) == f"sip:{SBC}:{port};transport=tls"
        assert probe.via.host == SBC
        assert (probe.from_.uri.host, probe.from_.uri.user) == (SBC, None)
        assert {"REFER", "NOTIFY", "OPTIONS"} <= set(probe.allow)
        await until(lambda: sip.trunk_states()[0].state == "up")


async def test_its_options_get_a_200(authority, names):
    async with connected(authority) as (sip, _, [service]):
        await service.connect(sip, SBC)
        far = service.calls(port_of(sip, "TLS"))
        far.ask("OPTIONS")
        answer = await far.response(200, "OPTIONS")
        assert {"REFER", "NOTIFY"} <= set(answer.allow)


async def test_a_name_of_ours_that_teams_does_not_know_gets_403(authority, names):
    async with connected(authority, ours="other.example.test") as (sip, _, [service]):
        call = sip.dial(Dial("+4930111"))
        ended = [progress async for progress in call.events()][-1]
        assert ended.status == 403
        assert {status for _, status, _ in service.refused} == {403}


# --- calls in ---


async def test_a_teams_user_calls_holds_resumes_and_hangs_up(authority, names):
    async with called(authority) as (sip, host, _, far, line, answer):
        talk = await host.talk()
        assert talk.leg.info.headers["X-MS-TenantId"] == "2d88cb42-f810-417a-a0fc-80244a7fdd61"
        assert talk.leg.info.headers["X-MS-UserLocation"] == "external"
        assert (talk.leg.info.caller, talk.leg.info.called) == (USER, "+4930123456")
        assert talk.leg.info.trunk == "teams"
        assert far.target == f"sip:{SBC}:{port_of(sip, 'TLS')};transport=tls"
        assert "m=audio" in answer
        assert " RTP/SAVP 9 13 101" in answer
        assert answer.count("a=crypto:") == 1
        assert f"a=crypto:1 {SUITE} inline:" in answer
        await both_hear(line, talk, monotonic())

        line.send(replace(line.packet(), payload_type=13, payload=b"\x45"))  # comfort noise
        line.send(replace(line.packet(), payload_type=13, payload=b"\x45"))
        await both_hear(line, talk, monotonic())
        assert talk.leg.malformed_packets == 0

        hold = far.ask("INVITE", sdp=teams.sdp(line, 2, "inactive"))
        held = await far.accepted(hold)
        assert "a=inactive" in sdp_of(held)
        assert key_in(sdp_of(held)) == key_in(answer)
        far.ack(held)
        await until(lambda: talk.leg.held)
        music = far.ask("INVITE", sdp=teams.sdp(line, 3, "sendonly"))
        plays = await far.accepted(music)
        assert "a=recvonly" in sdp_of(plays)
        far.ack(plays)
        assert talk.leg.held
        back = far.ask("INVITE", sdp=teams.sdp(line, 4))
        far.ack(await far.accepted(back))
        await until(lambda: not talk.leg.held)
        await both_hear(line, talk, monotonic())

        await far.hang_up()
        await until(lambda: host.records)
        [record] = host.records
        assert (record.transport, record.codec, record.ended_by) == ("TLS", "g722", "remote")
        assert record.srtp == f"SDES {SUITE}"


async def test_teams_offers_a_weaker_suite_first_and_is_answered_with_keys(authority, names):
    async with connected(authority) as (sip, host, [service]):
        await service.connect(sip, SBC)
        far = service.calls(port_of(sip, "TLS"))
        with sdes_sound("g722", 9) as line:
            weak = crypto("AES_CM_128_HMAC_SHA1_32", os.urandom(30), 0)
            offer = teams.sdp(line).replace("a=crypto:1", f"{weak}a=crypto:1")
            answer = await far.call(offer, *teams.headers())
            assert "a=crypto:0 AES_CM_128_HMAC_SHA1_32 inline:" in answer
            await host.talk()
            await far.hang_up()


async def test_after_teams_has_dropped_its_connection_we_still_hang_up(authority, names):
    async with called(authority) as (sip, host, service, far, line, _):
        talk = await host.talk()
        await both_hear(line, talk, monotonic())
        service.hang_up_connections()
        [call] = sip.calls.values()
        [route] = sip.user_agent.routes
        await until(lambda: route.lost)
        await until(lambda: sip.user_agent.next_hops.cached_flow(call.session.dialog.next_hop))
        leaving = asyncio.create_task(talk.leg.hang_up("done"))
        bye = await far.is_hung_up()
        await leaving
        assert bye.routes[0].uri.host == IN_DIALOG
        assert bye.uri.parameter("x-i") == "b712d12c"


# --- calls out ---


async def test_we_call_a_teams_user_hold_and_hang_up(authority, names):
    async with connected(authority) as (sip, host, [service]):
        call = sip.dial(Dial(USER, caller="+4930123456"))
        far = service.peer
        invite = await far.asked("INVITE")
        assert str(invite.uri) == f"sip:{USER}@{NAMES[0]}:{service.port}"
        assert str(invite.from_.uri) == f"sip:+4930123456@{SBC}"
        assert invite.contacts[0].uri.host == invite.via.host == SBC
        assert "Replaces" not in invite.headers
        with sdes_sound("g722", 9) as line:
            line.aim(sdp_of(invite))
            for tag in ("desktop", "phone"):  # each of the user's devices rings
                far.reply(invite, 180, tag=tag)
            far.learn(invite)
            far.tag = "desktop"
            route = ("Record-Route", f"<sip:{IN_DIALOG}:{service.port};transport=tls;lr>")
            far.reply(invite, 200, route, ("Allow", service.allow), sdp=teams.answer(line))
            ack = await far.asked("ACK")
            assert ack.routes[0].uri.host == IN_DIALOG
            talk = await host.talk()
            await both_hear(line, talk, monotonic())

            holding = asyncio.create_task(talk.leg.hold())
            again = await far.asked("INVITE")
            assert "a=sendonly" in sdp_of(again)
            assert key_in(sdp_of(again)) == key_in(sdp_of(invite))
            far.reply(again, 200, sdp=teams.answer(line).replace("sendrecv", "recvonly"))
            await far.asked("ACK")
            await holding
            resuming = asyncio.create_task(talk.leg.resume())
            again = await far.asked("INVITE")
            far.reply(again, 200, sdp=teams.answer(line))
            await far.asked("ACK")
            await resuming
            await both_hear(line, talk, monotonic())

            leaving = asyncio.create_task(talk.leg.hang_up("done"))
            bye = await far.is_hung_up()
            await leaving
            assert bye.routes[0].uri.host == IN_DIALOG
        assert call.state == "ended"
        assert host.records[0].srtp == f"SDES {SUITE}"


async def test_a_busy_data_centre_is_passed_over_for_the_next(authority, names):
    async with connected(authority, count=2) as (sip, host, [first, second]):
        first.busy = True
        sip.dial(Dial(USER, caller="+4930123456"))
        invite = await second.peer.asked("INVITE")
        assert str(invite.uri) == f"sip:{USER}@{NAMES[0]}:{first.port}"
        assert first.refused == [("INVITE", 503, "Service Unavailable")]
        with sdes_sound("g722", 9) as line:
            line.aim(sdp_of(invite))
            second.peer.learn(invite)
            second.peer.reply(invite, 200, sdp=teams.answer(line))
            await second.peer.asked("ACK")
            talk = await host.talk()
            await both_hear(line, talk, monotonic())
            leaving = asyncio.create_task(talk.leg.hang_up("done"))
            await second.peer.is_hung_up()
            await leaving


async def test_a_call_that_the_user_declines_is_not_placed_again(authority, names):
    async with connected(authority, count=2) as (sip, _, [first, second]):
        first.declines = True
        call = sip.dial(Dial(USER, caller="+4930123456"))
        ended = [progress async for progress in call.events()][-1]
        assert ended.status == 603
        assert first.refused == [("INVITE", 603, "Decline")]
        assert not second.peer.log


async def test_a_call_that_has_moved_follows_where_the_trunk_allows_it(authority, names):
    async with connected(authority, redirects=True) as (sip, host, [service]):
        call = sip.dial(Dial(USER, caller="+4930123456"))
        far = service.peer
        invite = await far.asked("INVITE")
        moved = ("Contact", f"<sip:+14255550199@{NAMES[0]};user=phone>")
        far.reply(invite, 302, moved)
        invite = await far.asked("INVITE")
        assert invite.uri.user == "+14255550199"
        with sdes_sound("g722", 9) as line:
            line.aim(sdp_of(invite))
            far.learn(invite)
            far.reply(invite, 200, sdp=teams.answer(line))
            talk = await host.talk()
            await both_hear(line, talk, monotonic())
            leaving = asyncio.create_task(talk.leg.hang_up("done"))
            await far.is_hung_up()
            await leaving
        assert call.state == "ended"


# --- transfers ---


async def notified(far):
    """What the next NOTIFY says."""
    notify = await far.asked("NOTIFY")
    far.reply(notify, 200)
    return notify.body.decode().strip()


@pytest.mark.parametrize("replaces", ["", "3a5f@pstnhub.test;to-tag=9f21;from-tag=77ab"])
async def test_teams_refers_us_to_another_user(authority, names, replaces):
    async with called(authority, follow=True) as (_, host, service, far, line, _):
        talk = await host.talk()
        await both_hear(line, talk, monotonic())
        other = service.new_call()
        target = f"sip:{NAMES[0]}:{service.port};transport=tls;x-m=8:orgid:dfcba638-4ecd-4382"
        service.replaceable = replaces
        if replaces:
            target += "?Replaces=" + quote(replaces)
        far.ask("REFER", ("Refer-To", f"<{target}>"), ("Referred-By", REFERRED_BY))
        await far.response(202)
        assert await notified(far) == "SIP/2.0 100 Trying"
        invite = await other.asked("INVITE")
        assert invite.uri.parameter("x-m") == "8:orgid:dfcba638-4ecd-4382"
        assert invite.uri.host == NAMES[0]
        assert invite.headers.get("Referred-By") == REFERRED_BY
        assert (invite.headers.get("Replaces") or "") == replaces
        assert str(invite.from_.uri) == f"sip:+4930123456@{SBC}"
        with sdes_sound("g722", 9) as second:
            second.aim(sdp_of(invite))
            other.learn(invite)
            other.reply(invite, 200, sdp=teams.answer(second))
            await other.asked("ACK")
            assert await notified(far) == "SIP/2.0 200 OK"
            await far.is_hung_up()
            await second.is_heard(talk, OTHER_TONE)
            await until(second.hears)
            leaving = asyncio.create_task(talk.leg.hang_up("done"))
            await other.is_hung_up()
            await leaving


async def test_teams_replaces_a_call_by_another(authority, names):
    async with called(authority) as (sip, host, service, far, line, _):
        talk = await host.talk()
        await both_hear(line, talk, monotonic())
        other = service.calls(port_of(sip, "TLS"))
        replaces = f"{far.call_id};to-tag={far.their_tag};from-tag={far.tag}"
        other.tag = "other"
        with sdes_sound("g722", 9) as second:
            answer = await other.call(
                teams.sdp(second), *teams.headers(), ("Replaces", replaces), ("Require", "replaces")
            )
            second.aim(answer)
            await second.is_heard(talk, OTHER_TONE)
            assert len(host.talks) == 1
            await far.is_hung_up()
            await until(second.hears)
            await other.hang_up()
        await until(lambda: host.records)


async def test_our_transfer_is_bridged_as_teams_takes_no_refer(authority, names):
    async with called(authority) as (_, host, service, far, line, _):
        talk = await host.talk()
        await both_hear(line, talk, monotonic())
        host.leave(talk)
        other = service.new_call()
        moving = asyncio.create_task(talk.leg.transfer("+14255550177"))
        invite = await other.asked("INVITE")
        assert "REFER" not in far.came
        assert str(invite.from_.uri) == f"sip:{USER}@{SBC}"
        with sdes_sound("g722", 9) as second:
            second.aim(sdp_of(invite))
            other.learn(invite)
            other.reply(invite, 200, sdp=teams.answer(second))
            await other.asked("ACK")
            await moving
            start = monotonic()
            saying = asyncio.gather(line.says(2.0), second.says(2.0, OTHER_TONE))
            await until(lambda: line.hears(OTHER_TONE, since=start))
            await until(lambda: second.hears(THEIR_TONE, since=start))
            await saying
            await other.hang_up()
            await far.is_hung_up()
            await until(lambda: len(host.records) == 2)


# --- far ends that break the rules ---


async def test_a_certificate_of_another_name_is_not_called(authority, names):
    service = Teams(authority.issue("sip.elsewhere.test"), authority.file)
    async with service.listening(), edge(authority, trunk(service.port)) as (sip, _):
        call = sip.dial(Dial(USER))
        reason = [progress async for progress in call.events()][-1].reason
        assert f"the certificate of {NAMES[0]} is not for that name" in reason


@contextmanager
def strict_server(authority, version):
    """A server that speaks one version of TLS, wants a certificate, and says so before it closes a
    connection: asyncio's servers close at once."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(*authority.issue("*.pstnhub.test"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    listener = socket.create_server((HOST, 0))

    def serve():
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            accepted.settimeout(60)
            tls = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            try:
                tls.do_handshake()
            except OSError:
                socket.socket.shutdown(tls, socket.SHUT_WR)
                while True:
                    try:
                        if not os.read(tls.fileno(), 4096):
                            break
                    except OSError:
                        break
            tls.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


WANTED = {
    ssl.TLSVersion.TLSv1_2: "perhaps for want of our certificate (certificate and key of [sip])",
    ssl.TLSVersion.TLSv1_3: "the server wants our certificate (certificate and key of [sip])",
}


@pytest.mark.parametrize("version", WANTED)
async def test_a_server_that_wants_a_certificate_is_said_to(authority, names, version):
    with strict_server(authority, version) as port:
        plain = Trunk("teams", server=f"{NAMES[0]}:{port}", transport="TLS", options_seconds=0)
        async with endpoint(authorities=authority.file, trunks=(plain,)) as (sip, _):
            call = sip.dial(Dial(USER))
            assert WANTED[version] in [p async for p in call.events()][-1].reason


async def test_a_certificate_of_an_unknown_authority_is_said_to(authority, names, tmp_path):
    stranger = Authority(tmp_path, "Another authority")
    certificate, key = stranger.issue(SBC)
    files = {"certificate": certificate, "key": key, "authorities": authority.file}
    with strict_server(authority, ssl.TLSVersion.TLSv1_3) as port:
        async with endpoint(trunks=(trunk(port),), **files) as (sip, _):
            call = sip.dial(Dial(USER))
            reason = [p async for p in call.events()][-1].reason
            assert "the server says that our certificate" in reason


PLAIN = ("RTP/AVP", "", "no common SRTP key exchange")
UNKNOWN = (
    "RTP/SAVP",
    "a=crypto:1 F8_128_HMAC_SHA1_80 inline:" + "A" * 40 + "\r\n",
    "no common SRTP key exchange (the far end has F8_128_HMAC_SHA1_80)",
)


@pytest.mark.parametrize(("protocol", "keys", "words"), [PLAIN, UNKNOWN], ids=["plain", "unknown"])
async def test_an_offer_without_keys_that_fit_is_refused_with_words(
    authority, names, protocol, keys, words
):
    async with connected(authority) as (sip, host, [service]):
        await service.connect(sip, SBC)
        far = service.calls(port_of(sip, "TLS"))
        with sdes_sound("g722", 9) as line:
            offer = teams.sdp(line).replace("RTP/SAVP", protocol)
            offer = offer.replace(line.crypto_line() + "\r\n", keys)
            far.invite(offer, *teams.headers())
            refused = await far.response(488)
            far.ack_refusal(refused)
        assert words in refused.headers.get("Warning")
        await until(lambda: host.records)
        assert words in host.records[0].end_reason


async def test_an_answer_without_keys_ends_the_call_with_words(authority, names):
    async with connected(authority) as (sip, _, [service]):
        call = sip.dial(Dial(USER))
        far = service.peer
        invite = await far.asked("INVITE")
        with sdes_sound("g722", 9) as line:
            far.learn(invite)
            answer = teams.answer(line).replace("RTP/SAVP", "RTP/AVP")
            answer = "".join(x for x in answer.splitlines(True) if not x.startswith("a=crypto"))
            far.reply(invite, 200, sdp=answer)
            await far.is_hung_up()
        reason = [progress async for progress in call.events()][-1].reason
        assert "no SRTP key" in reason
