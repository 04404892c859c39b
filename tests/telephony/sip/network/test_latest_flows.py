"""What is remembered of the flows of an address, and of how many."""

from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.latest_flows import MAX_FLOWS, LatestFlows, Party

US = ("192.0.2.1", 5060)
ANN = Party.of(Uri.parse("sip:Ann@Phones.example"), Uri.parse("sip:ann@10.0.0.2:5060"))
BOB = Party.of(Uri.parse("sip:bob@phones.example"), Uri.parse("sip:bob@10.0.0.3:5060"))


def flow(port: int, host: str = "203.0.113.9") -> Flow:
    return Flow("UDP", (host, port), US)


def test_an_account_is_the_same_in_any_case_and_a_call_needs_no_contact() -> None:
    assert Party.of(Uri.parse("sip:ann@phones.example"), None).account == "ann@phones.example"
    assert ANN.account == "ann@phones.example"


@given(st.lists(st.tuples(st.integers(2, 20), st.sampled_from([None, ANN, BOB])), max_size=40))
def test_those_of_others_and_too_many_are_never_returned(
    seen: list[tuple[int, Party | None]],
) -> None:
    flows, parties = LatestFlows(), dict[int, Party | None]()
    flows.add(flow(1))
    for port, party in seen:
        flows.seen(flow(port), party)
        flows.seen(flow(port, "198.51.100.7"), party)  # nobody we have a call with
        parties[port] = party or parties.get(port)
    found = flows.later(flow(1), ANN, unnamed=False)
    assert len(found) <= MAX_FLOWS
    assert {each.remote[0] for each in found} <= {"203.0.113.9"}
    assert all(parties[each.remote[1]] == ANN for each in found)
    latest = list(dict.fromkeys(port for port, _ in reversed(seen)))
    order = [latest.index(each.remote[1]) for each in found]
    assert order == sorted(order)


def test_an_address_is_forgotten_with_the_last_call() -> None:
    flows = LatestFlows()
    flows.add(flow(1))
    flows.add(flow(2))
    flows.seen(flow(3), ANN)
    flows.remove(flow(1))
    assert flows.later(flow(2), ANN, unnamed=True) == [flow(3)]
    flows.remove(flow(2))
    assert not flows.is_known(flow(3))
    flows.seen(flow(3), ANN)
    assert flows.later(flow(2), ANN, unnamed=True) == []
