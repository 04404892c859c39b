"""What is done for trunks between calls: questions to their servers, packets through a NAT."""

from dataclasses import replace

import pytest

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import with_raw_parameter
from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE_INTERVAL_S, KeepAlives
from offhook.telephony.sip.trunks.registration import (
    RECONNECT_SPREAD_S,
    STABLE_S,
    Registration,
    Standing,
)
from offhook.telephony.sip.trunks.trunk_watch import (
    DOWN_INTERVAL_S,
    FORGET_S,
    RESPONSE_TIMEOUT_S,
    SPREAD,
    TrunkWatch,
)
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.trunks.upkeep import RegistrationChanged
from offhook.telephony.sip.user_agent import UserAgent

US = ("10.0.0.5", 5060)
FIRST = Flow("UDP", ("198.51.100.1", 5060), US)
SECOND = Flow("UDP", ("198.51.100.2", 5060), US)
PBX = Trunk("pbx", server="pbx.example", options_seconds=60)
CARRIER = Trunk(
    "carrier", username="me", password="x", server="c.example", register=True, options_seconds=0
)
PROBED = replace(CARRIER, options_seconds=60)


class Server:
    """The trunk's watch and what its servers get to see."""

    def __init__(self, *flows, trunk=PBX):
        self.watch = TrunkWatch(trunk, "offhook", uniform=lambda low, high: high)
        self.now = 0.0
        self.watch.use(flows, 0.0)
        self.asked = []
        self._take()

    def _take(self):
        new = self.watch.probes_to_send()
        self.asked += [(self.now, request, flow) for request, flow in new]
        return new

    def passes(self, seconds):
        """Time, with every timer on the way."""
        end = self.now + seconds
        while (timer := self.watch.get_timer()) is not None and timer <= end:
            self.now = max(self.now, timer)
            self.watch.handle_timer(self.now)
            self._take()
        self.now = end

    def answers(self, flow, status=200):
        request = next(r for _, r, f in reversed(self.asked) if f == flow)
        self.watch.receive(respond(request, status), self.now)

    @property
    def state(self):
        return self.watch.state.state


def test_a_server_is_asked_at_once_and_is_up_when_it_answers_whatever_it_says():
    for status in (200, 404, 405, 403, 481, 401, 500):
        server = Server(FIRST)
        assert server.state == "unknown"
        [(_, request, flow)] = server.asked
        assert request.method == "OPTIONS"
        assert str(request.uri) == "sip:pbx.example"
        assert flow == FIRST
        server.answers(FIRST, status)
        assert server.state == "up"


@pytest.mark.parametrize("status", [408, 502, 503, 504])
def test_a_server_that_takes_no_calls_is_down(status):
    server = Server(FIRST)
    server.answers(FIRST, status)
    assert server.state == "down"
    assert f"198.51.100.1:5060 by UDP answers {status}" in server.watch.state.detail


def test_a_provisional_answer_says_nothing():
    server = Server(FIRST)
    server.answers(FIRST, 100)
    assert server.state == "unknown"


def test_a_server_is_asked_every_so_often_and_one_that_is_down_more_often():
    server = Server(FIRST)
    server.answers(FIRST)
    server.passes(59)
    assert len(server.asked) == 1
    server.passes(1)
    assert len(server.asked) == 2
    server.passes(RESPONSE_TIMEOUT_S)
    assert server.state == "down"
    assert server.watch.state.detail == "198.51.100.1:5060 by UDP has not responded for 8 s"
    server.passes(DOWN_INTERVAL_S)
    assert len(server.asked) == 3
    server.passes(10 * (DOWN_INTERVAL_S + RESPONSE_TIMEOUT_S))
    assert len(server.asked) == 13
    server.answers(FIRST)
    assert server.state == "up"


def test_an_answer_that_comes_late_counts():
    server = Server(FIRST)
    server.passes(RESPONSE_TIMEOUT_S + 1)
    assert server.state == "down"
    server.answers(FIRST)
    assert server.state == "up"


def test_the_end_of_an_older_question_says_nothing_of_a_newer_one():
    server = Server(FIRST)
    server.passes(RESPONSE_TIMEOUT_S + DOWN_INTERVAL_S)
    [old, new] = [request for _, request, _ in server.asked]
    server.watch.failed(old, "", server.now)
    server.answers(FIRST)
    server.watch.failed(new, "", server.now)  # it has an answer
    assert server.state == "up"


def test_where_there_is_no_way_the_reason_is_said_at_once():
    server = Server(FIRST)
    server.watch.failed(server.asked[0][1], "nobody listens there", server.now)
    assert server.watch.state.detail == "198.51.100.1:5060 by UDP: nobody listens there"


def test_a_trunk_is_up_while_one_of_its_servers_is():
    server = Server(FIRST, SECOND)
    server.answers(SECOND)
    server.passes(RESPONSE_TIMEOUT_S)
    assert server.state == "up"
    assert server.watch.state.detail.startswith("1 of 2 servers down: 198.51.100.1:5060")
    assert server.watch.is_down(FIRST)
    assert not server.watch.is_down(SECOND)


def test_a_new_look_up_keeps_what_is_known():
    server = Server(FIRST)
    server.answers(FIRST)
    server.watch.use([SECOND, FIRST], server.now)
    assert server.state == "up"
    [(question, flow)] = server.watch.probes_to_send()
    assert flow == SECOND
    assert question.call_id != server.asked[0][1].call_id


def test_a_server_that_a_call_did_not_get_through_to_is_asked_at_once():
    server = Server(FIRST)
    server.answers(FIRST)
    server.passes(5)
    server.watch.probe_now(FIRST, server.now)
    assert [f for _, f in server.watch.probes_to_send()] == [FIRST]


def test_trunks_are_not_all_asked_at_once():
    watch = TrunkWatch(PBX, "offhook")
    watch.use([FIRST], 0.0)
    [(question, _)] = watch.probes_to_send()
    watch.receive(respond(question, 200), 0.0)
    assert 60 * (1 - SPREAD) <= watch.get_timer() <= 60


# --- the way in through a NAT ---


def test_a_way_is_kept_open_every_25_s():
    kept = KeepAlives()
    kept.use([FIRST], 0.0)
    assert kept.get_timer() == KEEP_ALIVE_INTERVAL_S == 25
    assert not kept.pop_due(24.9)
    assert kept.pop_due(25.0) == [FIRST]
    kept.use([FIRST, SECOND], 40.0)  # what is kept open goes on as it was
    assert kept.pop_due(50.0) == [FIRST]
    assert kept.pop_due(65.0) == [SECOND]
    kept.use([], 66.0)
    assert kept.get_timer() is None


class Office:
    """A user agent whose trunk registers, and its registrar."""

    def __init__(
        self,
        trunk=CARRIER,
        flows=(FIRST, SECOND),
        local=US,
        mute=(),
        told=None,
        blind=(),
        expires=300,
        **settings,
    ):
        self.mute, self.told = mute, [] if told is None else told
        self.blind, self.expires, self.refuses = blind, expires, False
        self.agent = UserAgent(
            SipSettings(trunks=(trunk,), **settings),
            lambda flow: local,
            lambda transport, host, port: Flow(transport, (host, port), local),
        )
        self.trunk, self.now = trunk, 0.0
        self.sent: list[tuple[Request, Flow]] = []
        self.kept: list[tuple[float, Flow]] = []
        self.silent: set[Flow] = set()
        self.seen_as: tuple[str, int] | None = None
        self.agent.use_targets(trunk.name, flows, 0.0)
        if trunk.register:
            contact = self.agent.addresses.contact(flows[0], trunk)
            self.agent.register(Registration(trunk, contact), 0.0)
        self.work()

    def work(self):
        while messages := self.agent.messages_to_send():
            for data, flow in messages:
                request = parse_message(data)
                assert isinstance(request, Request)
                self.sent.append((request, flow))
                if flow not in self.silent and request.method not in self.mute:
                    self.agent.receive(self._answer(request).serialize(), flow, self.now)
        while (event := self.agent.next_event()) is not None:
            if isinstance(event, RegistrationChanged):
                self.told.append((event.status.standing, event.status.detail))
        self.kept += [(self.now, f) for f in self.agent.upkeep.keep_alives_to_send(self.now)]

    def _answer(self, request) -> Response:
        if self.refuses:
            return respond(request, 403, to_tag="t")
        if self.seen_as is not None and request.method not in self.blind:
            host, port = self.seen_as
            via = with_raw_parameter(str(request.via), "received", host)
            request.headers.set("Via", with_raw_parameter(via, "rport", str(port)))
        contact = request.headers.get("Contact")
        headers = [("Contact", f"{contact};expires={self.expires}")] if contact else []
        return respond(request, 200, to_tag="t", headers=headers)

    def passes(self, seconds):
        end = self.now + seconds
        while (timer := self.agent.get_timer()) is not None and timer <= end:
            self.now = max(self.now, timer)
            self.agent.handle_timer(self.now)
            self.work()
        self.now = end

    @property
    def state(self):
        return self.agent.upkeep.state(self.trunk)


def test_the_server_that_has_our_binding_hears_from_us_and_no_other():
    office = Office()
    office.passes(100)
    assert office.kept == [(25.0, FIRST), (50.0, FIRST), (75.0, FIRST), (100.0, FIRST)]


def test_after_a_fail_over_it_is_the_new_server_that_hears_from_us():
    office = Office()
    office.silent.add(FIRST)
    office.passes(300)  # the refresh at 230 s or before goes unanswered for 32 s
    assert office.kept[-1][1] == SECOND
    assert office.agent.upkeep.sorted(CARRIER, [FIRST, SECOND]) == [SECOND, FIRST]


def test_without_a_binding_and_over_tcp_nothing_is_kept_open():
    for office in (
        Office(replace(CARRIER, register=False)),
        Office(replace(CARRIER, transport="TCP"), [replace(FIRST, transport="TCP", connection=7)]),
    ):
        office.passes(60)
        assert not office.kept
    office = Office()
    office.agent.unregister(office.now)
    office.work()
    office.passes(60)
    assert not office.kept


def test_a_trunk_that_is_registered_is_up_and_says_why_when_it_is_not():
    office = Office()
    assert office.state.state == "up"
    office.silent |= {FIRST, SECOND}
    office.passes(400)
    assert office.state.state == "down"
    assert "no response from the registrar" in office.state.detail


def test_dns_in_another_order_does_not_move_the_registration():
    office = Office()
    office.agent.use_targets("carrier", [SECOND, FIRST], 1.0)
    office.passes(300)
    assert {flow for request, flow in office.sent if request.method == "REGISTER"} == {FIRST}


def test_a_server_that_is_down_is_passed_over_while_another_is_up():
    office = Office(PBX)
    office.passes(1)
    assert office.agent.upkeep.sorted(PBX, [FIRST, SECOND]) == [FIRST, SECOND]
    office.silent.add(FIRST)
    office.passes(100)
    assert office.agent.upkeep.sorted(PBX, [FIRST, SECOND]) == [SECOND]
    office.silent.add(SECOND)
    office.passes(100)
    assert office.agent.upkeep.sorted(PBX, [FIRST, SECOND]) == [FIRST, SECOND]
    assert office.state.state == "down"


# --- a server that falls silent, a connection that breaks ---


def test_a_registration_moves_when_its_server_falls_silent():
    office = Office(PROBED)
    office.passes(1)
    office.silent.add(FIRST)
    office.passes(60 + 8 + 32 + 1)  # a probe, its time limit, the transaction of the REGISTER
    registers = [(r.cseq.number, flow) for r, flow in office.sent if r.method == "REGISTER"]
    assert [flow for _, flow in dict.fromkeys(registers)] == [FIRST, FIRST, SECOND]
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [SECOND]


def test_a_registration_returns_to_the_first_server_when_that_is_back():
    office = Office(PROBED)
    office.silent.add(FIRST)
    office.passes(150)
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [SECOND]
    office.silent.clear()
    office.passes(DOWN_INTERVAL_S)
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [FIRST, SECOND]
    assert office.state.state == "up"
    # and the second's coming and going moves nothing
    office.silent.add(SECOND)
    office.passes(150)
    office.silent.clear()
    office.passes(150)
    registers = [(r.cseq, flow) for r, flow in office.sent if r.method == "REGISTER"]
    assert [flow for _, flow in dict.fromkeys(registers)][-1] == FIRST
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [FIRST, SECOND]


def test_a_server_that_comes_back_is_registered_with_at_once():
    """It may have been restarted, and remember nobody."""
    office = Office(PROBED, [FIRST])
    office.passes(1)
    office.silent.add(FIRST)
    office.passes(200)
    assert office.state.state == "down"
    office.silent.clear()
    before = len(office.sent)
    office.passes(DOWN_INTERVAL_S + 1)
    assert "REGISTER" in [request.method for request, _ in office.sent[before:]]
    assert office.state.state == "up"
    assert office.agent.upkeep.registrations.statuses[0].standing is Standing.REGISTERED


def test_a_registrar_that_ignores_options_is_not_down():
    office = Office(PROBED, mute=("OPTIONS",))
    office.passes(200)
    assert office.state.state == "up"
    office.agent.upkeep.call_failed(PROBED, FIRST, "no response", office.now)
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [SECOND]
    office.passes(FORGET_S + DOWN_INTERVAL_S + RESPONSE_TIMEOUT_S)
    assert office.agent.upkeep.sorted(PROBED, [FIRST, SECOND]) == [FIRST, SECOND]


@pytest.mark.parametrize("trunk", [PBX, replace(PBX, options_seconds=0), PROBED, CARRIER])
def test_a_server_without_a_response_to_a_call_comes_last_until_it_responds(trunk):
    office = Office(trunk)
    office.passes(1)
    office.silent.add(FIRST)
    office.agent.upkeep.call_failed(trunk, FIRST, "no response after 2 s", office.now)
    assert office.agent.upkeep.sorted(trunk, [FIRST, SECOND])[0] == SECOND
    office.passes(50)
    assert office.agent.upkeep.sorted(trunk, [FIRST, SECOND])[0] == SECOND
    office.silent.clear()
    office.passes(FORGET_S)
    assert FIRST in office.agent.upkeep.sorted(trunk, [FIRST, SECOND])


def test_a_server_that_takes_calls_and_ignores_options_is_not_down():
    office = Office(PBX, mute=("OPTIONS",))
    upkeep = office.agent.upkeep
    office.passes(RESPONSE_TIMEOUT_S + 1)
    assert office.state.state == "down"
    upkeep.call_failed(PBX, FIRST, "no response after 2 s", office.now)
    upkeep.call_taken(PBX, SECOND)
    for _ in range(5):
        assert upkeep.sorted(PBX, [FIRST, SECOND]) == [SECOND]
        office.passes(DOWN_INTERVAL_S)


def test_a_server_that_refuses_a_call_is_asked_and_stays():
    office = Office(PBX)
    office.passes(3)
    before = len(office.sent)
    office.agent.upkeep.call_failed(PBX, FIRST, "", office.now)
    office.agent.upkeep.update(office.now)
    office.work()
    assert [flow for _, flow in office.sent[before:]] == [FIRST]
    assert office.agent.upkeep.sorted(PBX, [FIRST, SECOND]) == [FIRST, SECOND]


def test_a_server_that_closes_each_connection_is_not_asked_without_end():
    flow = replace(FIRST, transport="TCP", connection=7)
    for trunk in (PBX, PROBED):
        office = Office(replace(trunk, transport="TCP"), [flow])
        for _ in range(100):
            office.passes(0.1)
            office.agent.flow_failed(flow, office.now)
            office.work()
        assert len(office.sent) < 16


def test_a_flow_that_comes_and_goes_leaves_nothing_behind():
    office = Office(PBX)
    for _ in range(100):
        office.silent.add(FIRST)
        office.passes(80)
        office.silent.clear()
        office.passes(20)
    assert all(not watch._changed for watch in office.agent.upkeep._watches.values())


def test_answers_that_do_not_say_how_we_are_seen_change_no_contact():
    office = Office(PROBED, blind=("OPTIONS",))
    office.seen_as = ("203.0.113.5", 40_000)
    office.passes(1800)
    contacts = {str(r.contacts[0].uri) for r, _ in office.sent if r.method == "REGISTER"}
    assert contacts == {"sip:me@10.0.0.5:5060", "sip:me@203.0.113.5:40000"}


# --- other settings ---


def reloaded(office, trunk):
    """The settings have this trunk now; None: none. Its server is known at once."""
    office.agent.use(SipSettings(trunks=(trunk,) if trunk else ()), office.now)
    if trunk is not None and trunk.register:
        contact = office.agent.addresses.contact(FIRST, trunk)
        office.agent.register(Registration(trunk, contact), office.now)
    office.work()


def test_a_changed_trunk_that_is_refused_and_then_removed_leaves_nothing():
    office = Office()
    office.refuses = True
    reloaded(office, replace(CARRIER, username="other"))
    office.passes(10)
    assert len(office.agent.upkeep.registrations._by_call_id) == 2
    office.refuses = False
    reloaded(office, None)
    office.passes(10)
    assert not len(office.agent.upkeep.registrations._by_call_id)


def test_two_changes_in_a_row_end_with_one_binding():
    office = Office()
    office.silent.add(FIRST)
    reloaded(office, replace(CARRIER, max_calls=3))
    office.silent.clear()
    reloaded(office, replace(CARRIER, max_calls=4))
    office.passes(100)
    assert len(office.agent.upkeep.registrations._by_call_id) == 1
    last = [r for r, _ in office.sent if r.method == "REGISTER"][-1]
    assert last.expires != 0
    assert office.state.state == "up"


def test_a_binding_that_lapses_before_the_changed_trunk_has_another_goes_too():
    office = Office()
    office.silent |= {FIRST, SECOND}
    reloaded(office, replace(CARRIER, username="other"))
    office.passes(1000)
    office.silent.clear()
    office.passes(1000)
    assert len(office.agent.upkeep.registrations._by_call_id) == 1


@pytest.mark.parametrize("expires", [60, 90, 300])
def test_a_registrar_that_keeps_no_connections_has_us_all_the_while(expires):
    flow = replace(FIRST, transport="TCP", connection=7)
    office = Office(replace(CARRIER, transport="TCP"), [flow], expires=expires)
    down = 0
    for _ in range(1500):
        office.passes(2)
        office.agent.flow_failed(flow, office.now)
        office.work()
        down += office.state.state != "up"
    assert down < 40


def test_a_break_an_hour_is_no_registrar_that_keeps_no_connections():
    flow = replace(FIRST, transport="TCP", connection=7)
    office = Office(replace(CARRIER, transport="TCP"), [flow], expires=60)
    for _ in range(8):
        office.passes(3600)
        office.agent.flow_failed(flow, office.now)
        office.work()
        assert office.state.state == "down"
        office.passes(RECONNECT_SPREAD_S)
        assert office.state.state == "up"


def connected():
    flow = replace(FIRST, transport="TCP", connection=7)
    return Office(replace(CARRIER, transport="TCP"), [flow]), flow


def registers(office):
    return sum(request.method == "REGISTER" for request, _ in office.sent)


def test_a_connection_that_breaks_is_made_and_registered_again_at_once():
    office, flow = connected()
    office.passes(STABLE_S + 1)
    assert registers(office) == 1
    office.agent.flow_failed(flow, office.now, "closed by the registrar")
    office.work()
    assert office.state.state == "down"
    assert "broke (closed by the registrar)" in office.state.detail
    [status] = office.agent.upkeep.registrations.statuses
    assert status.standing is Standing.FAILED
    office.passes(RECONNECT_SPREAD_S)
    assert registers(office) == 2
    [status] = office.agent.upkeep.registrations.statuses
    assert (status.standing, status.detail) == (Standing.REGISTERED, "")


def test_the_connection_of_somebody_else_matters_to_nobody():
    office, flow = connected()
    office.agent.flow_failed(replace(flow, connection=8), office.now)
    office.passes(10)
    assert registers(office) == 1
    assert office.state.state == "up"


def test_a_registrar_whose_connections_keep_breaking_is_not_hammered_and_still_counts():
    office, flow = connected()
    for _ in range(40):
        office.passes(3)
        office.agent.flow_failed(flow, office.now)
        office.work()
    assert registers(office) < 12
    assert office.state.state == "up"
    assert "keeps no connections" in office.agent.upkeep.registrations.statuses[0].detail


def test_a_connection_that_breaks_while_it_is_refreshed_is_no_binding():
    office, flow = connected()
    office.silent.add(flow)
    while registers(office) < 2:
        office.passes(1)
    office.agent.flow_failed(flow, office.now)
    office.work()
    assert office.agent.upkeep.registrations.statuses[0].standing is Standing.FAILED
    office.silent.clear()
    office.passes(10)
    assert office.agent.upkeep.registrations.statuses[0].standing is Standing.REGISTERED


def test_the_standing_is_told_once_and_at_each_change():
    told = []
    office = Office(told=told)
    office.silent |= {FIRST, SECOND}
    office.passes(2000)
    office.silent.clear()
    office.passes(400)
    assert [standing for standing, _ in told] == [
        Standing.REGISTERING,
        Standing.REGISTERED,
        Standing.REGISTERED,  # it could not be refreshed, and counts until its end
        Standing.FAILED,
        Standing.REGISTERED,
    ]
    assert [bool(detail) for _, detail in told] == [False, False, True, True, False]


def test_what_is_asked_has_its_default_and_can_be_off():
    assert Trunk("a", server="b").options_interval_s == 60
    assert Trunk("a", server="b", options_seconds=0).options_interval_s == 0
    assert replace(CARRIER, options_seconds=None).options_interval_s == 60
    assert Trunk("a", addresses=("10.0.0.1",)).options_interval_s == 0
    office = Office(replace(PBX, options_seconds=0))
    office.passes(1000)
    assert not office.sent


# --- where the registrar sees us ---


def test_behind_a_nat_calls_have_the_address_that_the_registrar_sees():
    office = Office()
    office.seen_as = ("203.0.113.5", 40_000)
    office.passes(300)
    [*_, (register, _)] = office.sent
    assert str(register.contacts[0].uri) == "sip:me@203.0.113.5:40000"
    assert str(office.agent.addresses.contact(FIRST, CARRIER)) == "sip:me@203.0.113.5:40000"
    # Nobody has told of other ways.
    assert office.agent.addresses.contact(FIRST, None).host == US[0]


def test_a_nat_that_forgets_us_is_noticed_at_the_next_probe():
    office = Office(PROBED)
    office.seen_as = ("203.0.113.5", 40_000)
    office.passes(61)
    office.seen_as = ("203.0.113.5", 50_000)
    office.passes(61)
    contacts = [str(r.contacts[0].uri) for r, _ in office.sent if r.method == "REGISTER"]
    assert contacts[-1] == "sip:me@203.0.113.5:50000"


def test_over_a_connection_too():
    flow = replace(FIRST, transport="TCP", connection=7)
    office = Office(replace(CARRIER, transport="TCP"), [flow])
    office.seen_as = ("203.0.113.5", 40_000)
    office.passes(300)
    contact = office.agent.addresses.contact(flow, CARRIER)
    assert str(contact) == "sip:me@203.0.113.5:40000;transport=tcp"
    assert office.sent[-1][0].contacts[0].uri == contact


def test_a_connection_without_a_nat_leaves_the_contact_alone():
    flow = replace(FIRST, transport="TCP", connection=7)
    office = Office(replace(CARRIER, transport="TCP"), [flow])
    office.seen_as = (US[0], 51_234)
    office.passes(300)
    assert {r.contacts[0].uri for r, _ in office.sent} == {
        Uri.parse("sip:me@10.0.0.5:5060;transport=tcp")
    }


@pytest.mark.parametrize(
    ("local", "settings"),
    [(("8.8.4.4", 5060), {}), (("198.18.0.9", 5060), {"public_address": "198.18.0.9"})],
)
def test_who_has_a_public_address_or_was_told_one_believes_no_registrar(local, settings):
    office = Office(local=local, **settings)
    office.seen_as = ("203.0.113.5", 40_000)
    office.passes(300)
    assert office.agent.addresses.contact(FIRST, CARRIER).host == local[0]
