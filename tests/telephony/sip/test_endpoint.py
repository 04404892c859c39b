"""Calls to our endpoint by a far end that says, over real sockets, exactly what the test says."""

import asyncio

import pytest
from loguru import logger

from offhook.media.end_reason import FAILURES, End
from offhook.telephony.sip import media_watch_io
from offhook.telephony.sip.admission import access_policy
from offhook.telephony.sip.media import leg_io
from offhook.telephony.sip.messages.message import Response, sdp_of
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.web.edge.refusals import Busy
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, endpoint, port_of
from tests.telephony.sip.scripted_peer import Time, tcp_peer, udp_peer
from tests.telephony.sip.scripted_sound import sound


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


async def record(host, number=0):
    await until(lambda: len(host.records) > number)
    return host.records[number]


# --- INVITE, ACK, CANCEL, BYE ---


async def test_a_repeated_invite_is_one_call_with_one_tag_before_and_after_its_200(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.invite(line.sdp())
            far.send(invite)
            far.send(invite)
            answer = await far.response(200)
            far.send(invite)
            await time.passes(sip, 0.6)  # the 200 is repeated for want of an ACK
            again = await far.response(200)
            far.ack(again)
            await asyncio.sleep(0.05)
            far.send(invite)
            await asyncio.sleep(0.05)
            tags = {m.to.tag for m in far.log if isinstance(m, Response) and m.status > 100}
            assert tags == {answer.to.tag}
            assert set(far.came) <= {100, 200}
            assert again.body == answer.body
            await far.hang_up()
        await record(host)
        assert len(host.talks) == 1
        assert len(host.records) == 1


async def test_without_an_ack_the_200_is_repeated_and_at_last_a_bye_is_sent(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp())
            far.learn(await far.response(200))
            await time.passes(sip, 31.9)
            # T1, doubling up to T2: at 0.5, 1.5, 3.5, 7.5, 11.5 … 31.5 s
            assert far.came.count(200) == 1 + 10
            assert "BYE" not in far.came
            assert (await host.talk()).leg.closed is None
            await time.passes(sip, 0.2)
            bye = await far.is_hung_up()
            assert "did not confirm" in bye.headers.get("Reason")
        ended = await record(host)
        assert (ended.ended_by, ended.end_reason) == (
            "timeout",
            "the far end did not confirm the call",
        )


async def test_an_ack_stops_the_repeats_however_often_it_comes(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp())
            answer = await far.response(200)
            await time.passes(sip, 2)
            far.ack(answer)
            far.ack(answer)
            await asyncio.sleep(0.05)
            repeats = far.came.count(200)
            await time.passes(sip, 40)
            assert far.came.count(200) == repeats == 3
            assert (await host.talk()).leg.closed is None
            await far.hang_up()


async def test_a_caller_who_gives_up_at_once_gets_487_and_nobody_speaks():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp())
            far.cancel()
            refused = await far.response(487)
            far.ack_refusal(refused)
            assert (await far.response(200)).cseq.method == "CANCEL"
        ended = await record(host)
        assert (ended.status, ended.end_reason, ended.ended_by) == (487, "cancelled", "remote")
        assert not host.talks


async def test_a_cancel_that_crosses_our_200_changes_nothing(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp())
            answer = await far.response(200, "INVITE")
            far.cancel()
            await far.response(200, "CANCEL")
            far.ack(answer)
            await time.passes(sip, 40)
            assert far.came.count(487) == 0
            assert (await host.talk()).leg.closed is None
            await far.hang_up()
        assert (await record(host)).ended_by == "remote"


async def test_a_bye_instead_of_the_ack_ends_the_call(time):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp())
            far.learn(await far.response(200))
            await far.hang_up()
            await record(host)
            await time.passes(sip, 40)
            assert far.came.count(200) == 2  # to INVITE and BYE: nothing is repeated
            assert "BYE" not in far.came


@pytest.mark.parametrize(
    ("reason", "words", "failed"),
    [
        ("Q.850;cause=16", "hung up", False),
        ("Q.850;cause=17", "busy", False),
        (
            'Q.850;cause=27;text="the \\"lift\\""',
            'the destination is out of order: the "lift"',
            True,
        ),
        ('Q.850;cause=41;text="Temporary failure"', "the network failed for a moment", True),
    ],
)
async def test_why_the_far_end_hung_up_is_in_the_record_and_counted(reason, words, failed):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            await far.hang_up(("Reason", reason))
        ended = await record(host)
        assert ended.end_reason == words
        assert (ended.ended_by, ended.status) == ("remote", 200)
        assert ended.end_reason.end is not End.OTHER
        assert (ended.end_reason.end in FAILURES) is failed


async def test_an_agent_that_hangs_up_says_why():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            talk = await host.talk()
            leaving = asyncio.create_task(talk.leg.hang_up('the "longest" duration'))
            bye = await far.is_hung_up()
            await leaving
        assert bye.headers.get("Reason") == 'Q.850;cause=16;text="the \\"longest\\" duration"'
        ended = await record(host)
        assert (ended.end_reason, ended.ended_by) == ('the "longest" duration', "local")


async def test_the_same_call_by_another_way_is_refused_and_the_first_goes_on():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.invite(line.sdp())
            fork = far.request("INVITE", sdp=line.sdp(), cseq=invite.cseq.number, to_tag="")
            far.send(fork)
            answer = await far.response(200)
            await far.response(482)
            far.ack(answer)
            await far.hang_up()
        await record(host)
        assert len(host.records) == 1


FROM_A_GATEWAY = ("From", "<tel:+4930123456>;tag=far"), ("Contact", "<tel:+4930123456>")


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ((("Max-Forwards", "0"),), "far"),
        (FROM_A_GATEWAY, "+4930123456"),
        ((("From", "tel:+49-30-123456;tag=far"), ("Contact", "tel:+4930123456")), "+4930123456"),
    ],
    ids=["no more hops", "tel URIs", "bare tel URIs"],
)
async def test_a_call_that_can_be_served_is(headers, caller):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp(), *headers)
            assert (await host.talk()).leg.info.caller == caller
            await (await host.talk()).leg.hang_up("enough")
            await far.is_hung_up()  # the BYE finds its way
        assert (await record(host)).ended_by == "local"


async def test_a_via_comes_back_as_it_was_sent_but_for_where_it_came_from():
    async with endpoint() as (sip, _), udp_peer(sip) as far:
        asked = far.request("OPTIONS")
        sent = (
            f'sip / 2.0 / UDP 127.0.0.1:{far.port} ;Branch=z9hG4bK;X="a;\\"b, c"; rport ;TTL=16',
            'SIP/2.0/TCP Proxy.Example.COM;branch="z9hG4bKq"',
        )
        asked.headers.set("Via", *sent)
        far.send(asked)
        answer = await far.response(200)
        at = f"rport={far.port}"
        assert answer.headers.all("Via") == [
            f"{sent[0].replace(' rport ', at)};received=127.0.0.1",
            sent[1],
        ]


@pytest.mark.parametrize(
    ("headers", "formats", "status", "said"),
    [
        ((("Require", "x-unheard-of"),), "0", 420, ("Unsupported", "x-unheard-of")),
        ((("Content-Type", "application/isup"),), "0", 415, ("Accept", "application/sdp")),
        (
            (),
            "18 4",
            488,
            (
                "Warning",
                "no codec in common: offered G729/8000, G723/8000, "
                "we speak opus/48000/2, G722/8000, PCMU/8000, PCMA/8000",
            ),
        ),
        ((("Session-Expires", "30"), ("Supported", "timer")), "0", 422, ("Min-SE", "90")),
    ],
)
async def test_what_cannot_be_served_is_refused_and_said(headers, formats, status, said):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            invite = far.request("INVITE", *headers, sdp=line.sdp(formats))
            for name, value in headers:
                invite.headers.set(name, value)
            far.send(invite)
            refused = await far.response(status)
            if said is not None:
                assert said[1] in refused.headers.get(said[0])
        assert not host.talks


@pytest.mark.parametrize(
    ("method", "status"), [("SUBSCRIBE", 405), ("JUMP", 501), ("BYE", 481), ("OPTIONS", 200)]
)
async def test_requests_outside_a_call_have_their_answers(method, status):
    async with endpoint() as (sip, _), udp_peer(sip) as far:
        far.ask(method, to_tag="nobody" if method == "BYE" else "")
        answer = await far.response(status)
        assert status == 481 or "INVITE" in answer.allow


# --- an offer of ours ---


async def test_a_call_without_an_offer_is_given_one_and_answers_in_its_ack():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound("pcma", 8) as line:
            offer = await offered(far)
            assert all(f"a=rtpmap:{n} " in offer for n in (0, 8, 9))
            line.aim(offer)
            far.ack(far.answer, line.sdp("8"))
            await line.is_heard(await host.talk())
            assert line.hears()
            await far.hang_up()
        assert (await record(host)).codec == "pcma"


async def offered(far):
    far.invite(None)
    far.answer = await far.response(200)
    return sdp_of(far.answer)


async def test_an_ack_without_the_answer_that_is_due_ends_the_call():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        await offered(far)
        far.ack(far.answer)
        await far.is_hung_up()
        assert "did not answer the offer" in (await record(host)).end_reason


@pytest.mark.parametrize("answer", ["m=audio 0 RTP/AVP 0", "m=audio 4000 RTP/AVP 18", "nonsense"])
async def test_an_answer_that_does_not_fit_our_offer_ends_the_call(answer):
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        await offered(far)
        head = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        far.ack(far.answer, answer if answer == "nonsense" else f"{head}{answer}\r\n")
        await far.is_hung_up()
        assert "no acceptable media" in (await record(host)).end_reason


# --- routes and connections ---


@pytest.mark.parametrize("loose", [True, False])
async def test_requests_of_ours_go_by_the_recorded_route(loose):
    async with endpoint() as (sip, host), udp_peer(sip) as far, udp_peer() as proxy:
        with sound() as line:
            route = f"<sip:{proxy.uri[8:]}{';lr' if loose else ''}>"
            await far.call(line.sdp(), ("Record-Route", route))
            leaving = asyncio.create_task((await host.talk()).leg.hang_up("done"))
            bye = await proxy.is_hung_up()
            await leaving
        contact, hop = far.uri, route[1:-1]
        assert str(bye.uri) == (contact if loose else hop)
        assert [str(r.uri) for r in bye.routes] == [hop if loose else contact]
        assert "BYE" not in far.came


async def test_a_new_contact_is_where_the_call_goes_on():
    async with endpoint() as (sip, host), udp_peer(sip) as far, udp_peer() as elsewhere:
        with sound() as line:
            await far.call(line.sdp())
            far.contact = elsewhere.contact
            await far.call(line.sdp())
            leaving = asyncio.create_task((await host.talk()).leg.hang_up("done"))
            bye = await elsewhere.is_hung_up()
            await leaving
        assert str(bye.uri) == elsewhere.uri


async def test_by_tcp_messages_come_in_pieces_and_together():
    async with endpoint() as (sip, host), tcp_peer(sip) as far:
        with sound() as line:
            data = far.request("INVITE", sdp=line.sdp()).serialize()
            size = len(data) // 5 + 1
            for start in range(0, len(data), size):
                assert far.came == []
                far.send_bytes(data[start : start + size])
                await asyncio.sleep(0.01)
            far.learn(await far.response(200))
            ack = far.request("ACK", cseq=1)
            far.send_bytes(ack.serialize() + far.request("BYE").serialize())
            await far.response(200, "BYE")
        ended = await record(host)
        assert (ended.transport, ended.ended_by) == ("TCP", "remote")
        assert far.came.count(200) == 2  # a stream repeats nothing


async def test_a_call_by_tcp_outlives_its_connection():
    """The next request of ours goes to the Contact, by a connection of our own."""
    waiting = []
    server = await asyncio.start_server(
        lambda reader, writer: waiting.append((reader, writer)), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with endpoint() as (sip, host):
        async with tcp_peer(sip) as far:
            with sound() as line:
                far.contact = f"<sip:far@127.0.0.1:{port};transport=tcp>"
                await far.call(line.sdp())
                talk = await host.talk()
        await asyncio.sleep(0.05)
        assert talk.leg.closed is None
        leaving = asyncio.create_task(talk.leg.hang_up("done"))
        await until(lambda: waiting)
        reader, writer = waiting[0]
        assert (await reader.readline()).startswith(b"BYE sip:far@127.0.0.1")
        writer.close()
        await leaving
    server.close()


# --- limits ---


async def test_ports_of_a_call_that_ended_rest_before_they_are_used_again():
    low = free_port(4)
    async with (
        endpoint(rtp_ports=(low, low + 3)) as (sip, host),
        udp_peer(sip) as far,
        udp_peer(sip) as other,
        udp_peer(sip) as third,
    ):
        with sound() as line:
            ports = set()
            for number, peer in enumerate((far, other)):
                line.aim(await peer.call(line.sdp()))
                ports.add(line.remote[1])
                await peer.hang_up()
                await record(host, number)
            assert ports == {low, low + 2}
            third.invite(line.sdp())
            refused = await third.response(503)
            assert "ports" in refused.headers.get("Warning")


async def test_beyond_so_many_calls_the_next_is_told_to_come_back():
    async with (
        endpoint(max_calls=1) as (sip, host),
        udp_peer(sip) as far,
        udp_peer(sip) as other,
    ):
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            other.invite(line.sdp())
            refused = await other.response(503)
            assert refused.headers.get("Retry-After") == "10"
            assert refused.headers.get("Reason") == 'Q.850;cause=34;text="all lines are busy"'
            assert host.talks[0].leg.closed is None
            await far.hang_up()


async def test_why_a_call_was_shed_is_in_the_log_and_in_its_record():
    def shed():
        raise Busy("late")

    lines = []
    sink = logger.add(lines.append, format="{message}")
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        host.admit = shed
        with sound() as line:
            far.invite(line.sdp())
            refused = await far.response(503)
            assert refused.headers.get("Reason") == 'Q.850;cause=42;text="overloaded"'
            assert refused.headers.get("Retry-After") == "10"
            ended = await record(host)
    logger.remove(sink)
    assert (ended.status, ended.end_reason) == (503, "refused: 503 (late)")
    assert [text.strip() for text in lines if ended.call_id in text] == [
        f"{ended.call_id}: refused: late"
    ]


async def test_a_stranger_who_calls_too_fast_is_told_so_a_few_times_and_then_not_heard():
    trunks = (Trunk("phone", username="alice", password="secret"),)
    async with (
        endpoint(trunks=trunks, requests_per_second=2, invites_per_second=2) as (sip, _),
        udp_peer(sip) as far,
    ):
        for _ in range(60):
            far.ask("INVITE", to_tag="")
        await far.response(401)
        limited = await far.response(503)
        assert limited.headers.get("Retry-After") == "5"
        await asyncio.sleep(0.1)
        assert len(far.came) < 30
        assert set(far.came) == {401, 503}
        assert sip.user_agent.transactions == 0


async def test_a_trunk_that_calls_too_often_is_refused_without_state(monkeypatch):
    monkeypatch.setattr(access_policy, "TRUNK_INVITES_PER_SECOND", 0.0)
    monkeypatch.setattr(access_policy, "TRUNK_INVITES_BURST", 2.0)
    async with (
        endpoint() as (sip, _),
        udp_peer(sip) as far,
        udp_peer(sip) as other,
        udp_peer(sip) as third,
    ):
        with sound() as line:
            await far.call(line.sdp())
            await other.call(line.sdp())
            before = sip.user_agent.transactions
            third.invite(line.sdp())
            refused = await third.response(503)
            assert refused.headers.get("Retry-After") == "5"
            assert sip.user_agent.transactions <= before
            assert len(sip.calls) == 2
            await far.hang_up()  # those in progress go on as ever
            await other.hang_up()


async def test_a_scanner_hears_nothing():
    async with endpoint(trunks=()) as (sip, _), udp_peer(sip) as far:
        for method in ("OPTIONS", "REGISTER", "INVITE", "SUBSCRIBE", "BYE", "ACK", "CANCEL"):
            far.ask(method, to_tag="")
        far.send_bytes(b"OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1;rport\r\n\r\n")
        await asyncio.sleep(0.2)
        assert far.came == []


# --- calls without sound ---


@pytest.mark.parametrize("spoke", [False, True])
async def test_a_call_without_sound_is_hung_up(monkeypatch, spoke):
    monkeypatch.setattr(media_watch_io, "MEDIA_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(leg_io, "MAX_SPEECH_S", 0.1)  # the agent says a tone without end
    limits = {"media_timeout_seconds": 0.3, "initial_media_timeout_seconds": 0.7}
    async with endpoint(**limits) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            line.aim(await far.call(line.sdp()))
            if spoke:
                await line.says(0.5)  # longer than the limit in mid-call
                assert "BYE" not in far.came
            else:
                await asyncio.sleep(0.5)
                assert "BYE" not in far.came
            bye = await far.is_hung_up()
        said = "the sound stopped" if spoke else "no sound came"
        assert said in bye.headers.get("Reason")
        ended = await record(host)
        assert (ended.end_reason, ended.ended_by) == (said, "local")


async def test_nobody_is_hung_up_while_on_hold(monkeypatch):
    monkeypatch.setattr(media_watch_io, "MEDIA_CHECK_INTERVAL_S", 0.05)
    limits = {"media_timeout_seconds": 0.2, "initial_media_timeout_seconds": 0.2}
    async with endpoint(**limits) as (sip, _), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp(direction="sendonly"))
            await asyncio.sleep(0.5)
            assert "BYE" not in far.came
            await far.call(line.sdp(version=2))
            await far.is_hung_up()


async def test_the_server_goes_and_says_so_to_everybody():
    async with endpoint(trunks=(LOOPBACK,)) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            closing = asyncio.create_task(sip.close())
            bye = await far.is_hung_up()
            await closing
            assert "shutting down" in bye.headers.get("Reason")
            assert port_of(sip, "UDP")
        assert (await record(host)).ended_by == "local"
