"""Looking up SIP URIs, against a small name server on a UDP socket."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import pytest

from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network import resolver_io
from offhook.telephony.sip.network.resolver_io import ResolveError, Resolver, Target, srv_order

ZONE = """
naptr.test 60 IN NAPTR 20 10 "s" "SIP+D2U" "" _sip._udp.naptr.test.
naptr.test 60 IN NAPTR 10 20 "S" "sip+d2t" "" _sip._tcp.naptr.test.
naptr.test 60 IN NAPTR 10 10 "s" "SIPS+D2T" "" _sips._tcp.naptr.test.
naptr.test 60 IN NAPTR 1 1 "s" "SIP+D2W" "" _sip._ws.naptr.test.
naptr.test 60 IN NAPTR 1 1 "u" "E2U+sip" "!^.*$!sip:x@y!" .
_sip._udp.naptr.test 60 IN SRV 10 0 5070 a.test.
_sip._tcp.naptr.test 60 IN SRV 10 0 5080 a.test.
_sips._tcp.naptr.test 60 IN SRV 10 0 5081 both.test.
a.test 60 IN A 192.0.2.1
both.test 60 IN AAAA 2001:db8::2
both.test 60 IN A 192.0.2.2
srv.test 60 IN A 192.0.2.66
_sip._udp.srv.test 60 IN SRV 20 0 5060 both.test.
_sip._udp.srv.test 60 IN SRV 10 0 5062 a.test.
_sip._tcp.srv.test 60 IN SRV 10 0 5064 a.test.
plain.test 60 IN A 192.0.2.3
alias.test 60 IN CNAME plain.test.
short.test 1 IN A 192.0.2.4
none.test 60 IN A 192.0.2.5
_sip._udp.none.test 60 IN SRV 0 0 0 .
_sip._tcp.none.test 60 IN SRV 0 0 0 .
_sips._tcp.none.test 60 IN SRV 0 0 0 .
half.test 60 IN A 192.0.2.6
_sip._udp.half.test 60 IN SRV 1 0 5060 gone.test.
_sip._udp.half.test 60 IN SRV 2 0 5061 a.test.
"""


class NameServer(asyncio.DatagramProtocol):
    """Answers from the zone; silent about the names it is told to be silent about."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.records: dict[tuple[str, str], list[str]] = {}
        for line in (*ZONE.strip().splitlines(), *MANY):
            name, ttl, _, kind, data = line.split(" ", 4)
            self.records.setdefault((name, kind), []).append(f"{ttl} {data}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        if name in self.silent or "*" in self.silent:
            return
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        target = name
        for alias in self.records.get((name, "CNAME"), []):
            target = alias.split(" ", 1)[1].rstrip(".")
            response.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "CNAME", f"{target}."))
        found = [record.split(" ", 1) for record in self.records.get((target, kind), [])]
        if found:
            values = [value for _, value in found]
            response.answer.append(
                dns.rrset.from_text(f"{target}.", int(found[0][0]), "IN", kind, *values)
            )
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(3)
        self.transport.sendto(response.to_wire(), address)  # type: ignore[attr-defined]


MANY = [
    line
    for i in range(40)
    for service in ("_sip._udp", "_sip._tcp", "_sips._tcp")
    for line in (
        f"{service}.many.test 60 IN SRV {i} 0 5060 host{i}{service}.many.test.",
        *(f"host{i}{service}.many.test 60 IN A 10.{i}.0.{j}" for j in range(20)),
    )
]


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    protocol = NameServer()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, ("127.0.0.1", 0))
    yield protocol
    transport.close()


@pytest.fixture
def resolver(server: NameServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Resolver:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 localhost # both\n192.0.2.77 sbc Sbc.Lan\nx bad\n")
    monkeypatch.setattr(resolver_io, "HOSTS", hosts)
    port = server.transport.get_extra_info("sockname")[1]  # type: ignore[attr-defined]
    return Resolver(["127.0.0.1"], port)


async def places(resolver: Resolver, uri: str, default: str = "UDP") -> list[tuple[str, str, int]]:
    targets = await resolver.resolve(Uri.parse(uri), default)  # type: ignore[arg-type]
    return [(t.transport, t.host, t.port) for t in targets]


@pytest.mark.parametrize(
    ("uri", "default", "place"),
    [
        ("sip:192.0.2.9", "UDP", ("UDP", "192.0.2.9", 5060)),
        ("sip:192.0.2.9", "TCP", ("TCP", "192.0.2.9", 5060)),
        ("sip:192.0.2.9", "TLS", ("TLS", "192.0.2.9", 5061)),
        ("sip:a@[2001:db8::9]:5080", "UDP", ("UDP", "2001:db8::9", 5080)),
        ("sip:192.0.2.9;transport=tcp", "UDP", ("TCP", "192.0.2.9", 5060)),
        ("sip:192.0.2.9;transport=tls", "UDP", ("TLS", "192.0.2.9", 5061)),
        ("sips:192.0.2.9", "UDP", ("TLS", "192.0.2.9", 5061)),
        ("sips:192.0.2.9;transport=tcp", "UDP", ("TLS", "192.0.2.9", 5061)),
        ("sip:naptr.test;maddr=192.0.2.9", "UDP", ("UDP", "192.0.2.9", 5060)),
    ],
)
async def test_numeric_hosts_need_no_name_server(
    server: NameServer, resolver: Resolver, uri: str, default: str, place: tuple[str, str, int]
) -> None:
    assert await places(resolver, uri, default) == [place]
    assert not server.asked


async def test_a_domain_says_by_naptr_which_services_it_likes_best(resolver: Resolver) -> None:
    assert await places(resolver, "sip:naptr.test") == [
        ("TLS", "192.0.2.2", 5081),
        ("TLS", "2001:db8::2", 5081),
        ("TCP", "192.0.2.1", 5080),
        ("UDP", "192.0.2.1", 5070),
    ]


async def test_nothing_but_tls_is_chosen_when_it_must_be_secure(resolver: Resolver) -> None:
    only = [("TLS", "192.0.2.2", 5081), ("TLS", "2001:db8::2", 5081)]
    assert await places(resolver, "sips:naptr.test") == only
    assert await places(resolver, "sip:naptr.test", "TLS") == only
    assert await places(resolver, "sips:plain.test") == [("TLS", "192.0.2.3", 5061)]


async def test_a_named_transport_goes_straight_to_its_service(
    server: NameServer, resolver: Resolver
) -> None:
    assert await places(resolver, "sip:naptr.test;transport=tcp") == [("TCP", "192.0.2.1", 5080)]
    assert not server.asked["naptr.test", "NAPTR"]


async def test_without_naptr_each_service_is_asked_for_by_srv(resolver: Resolver) -> None:
    udp = [("UDP", "192.0.2.1", 5062), ("UDP", "192.0.2.2", 5060), ("UDP", "2001:db8::2", 5060)]
    tcp = [("TCP", "192.0.2.1", 5064)]
    assert await places(resolver, "sip:srv.test") == udp + tcp
    assert await places(resolver, "sip:srv.test", "TCP") == tcp + udp


async def test_without_srv_the_address_of_the_host_is_taken(resolver: Resolver) -> None:
    assert await places(resolver, "sip:plain.test") == [("UDP", "192.0.2.3", 5060)]
    assert await places(resolver, "sip:plain.test", "TCP") == [("TCP", "192.0.2.3", 5060)]
    assert await places(resolver, "sip:alias.test") == [("UDP", "192.0.2.3", 5060)]
    assert await places(resolver, "sip:PLAIN.test") == [("UDP", "192.0.2.3", 5060)]


async def test_a_port_in_the_uri_means_no_srv(server: NameServer, resolver: Resolver) -> None:
    assert await places(resolver, "sip:srv.test:5099") == [("UDP", "192.0.2.66", 5099)]
    assert not any("_sip" in name for name, _ in server.asked)


async def test_the_certificate_must_be_for_the_domain_and_not_for_the_host_behind_it(
    resolver: Resolver,
) -> None:
    (target, *_) = await resolver.resolve(Uri.parse("sips:naptr.test"))
    assert target == Target("TLS", "192.0.2.2", 5081, "naptr.test")


async def test_a_service_that_a_domain_says_it_has_not_is_not_looked_for_at_its_host(
    server: NameServer, resolver: Resolver
) -> None:
    with pytest.raises(ResolveError, match=r"none\.test"):
        await resolver.resolve(Uri.parse("sip:none.test"))
    assert {kind for _, kind in server.asked} == {"NAPTR", "SRV"}


async def test_a_server_whose_name_leads_nowhere_is_passed_over(resolver: Resolver) -> None:
    assert await places(resolver, "sip:half.test") == [("UDP", "192.0.2.1", 5061)]


async def test_names_of_the_hosts_file_are_not_asked_of_dns(
    server: NameServer, resolver: Resolver
) -> None:
    assert await places(resolver, "sip:SBC") == [("UDP", "192.0.2.77", 5060)]
    assert await places(resolver, "sip:sbc.lan:5070") == [("UDP", "192.0.2.77", 5070)]
    both = await places(resolver, "sip:localhost:5070")
    assert both == [("UDP", "127.0.0.1", 5070), ("UDP", "::1", 5070)]
    assert not any(kind == "A" for _, kind in server.asked)


async def test_answers_are_kept_as_long_as_they_say(server: NameServer, resolver: Resolver) -> None:
    for _ in range(3):
        await places(resolver, "sip:short.test:5060")
        await places(resolver, "sip:plain.test")
    assert server.asked["short.test", "A"] == 1
    assert server.asked["plain.test", "A"] == server.asked["plain.test", "NAPTR"] == 1
    await asyncio.sleep(1.1)
    await places(resolver, "sip:short.test:5060")
    assert server.asked["short.test", "A"] == 2


@pytest.mark.parametrize(
    "uri",
    [
        "sip:unknown.test",
        "tel:+15551234",
        "sip:naptr.test;transport=ws",
        "sips:naptr.test;transport=udp",
        "sip:a..b",
        f"sip:{'x' * 64}.test",
        f"sip:{'x.' * 200}test",
    ],
)
async def test_a_uri_that_leads_nowhere_says_so(resolver: Resolver, uri: str) -> None:
    with pytest.raises(ResolveError):
        await resolver.resolve(Uri.parse(uri))


async def test_a_silent_name_server_is_given_up(
    server: NameServer, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver_io, "RESOLVE_TIMEOUT_S", 0.3)
    server.silent.add("*")
    with pytest.raises(ResolveError, match="timed out"):
        await resolver.resolve(Uri.parse("sip:naptr.test"))


async def test_one_query_without_an_answer_does_not_stop_the_others(
    server: NameServer, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver_io, "QUERY_TIMEOUT_S", 0.3)
    server.silent.add("_sip._tcp.srv.test")
    assert ("UDP", "192.0.2.1", 5062) in await places(resolver, "sip:srv.test")


async def test_a_domain_with_a_thousand_places_gives_the_best_of_them(
    server: NameServer, resolver: Resolver
) -> None:
    found = await places(resolver, "sip:many.test")
    assert len(found) == resolver_io.MAX_TARGETS
    assert sum(kind == "A" for _, kind in server.asked) <= resolver_io.MAX_TARGETS
    assert all(host.startswith("10.0.") for _, host, _ in found)


async def test_a_machine_without_name_servers_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise dns.resolver.NoResolverConfiguration

    monkeypatch.setattr(dns.resolver.BaseResolver, "read_resolv_conf", fail)
    with pytest.raises(ResolveError):
        await Resolver().resolve(Uri.parse("sip:plain.test"))


def test_servers_are_drawn_by_weight_within_a_priority() -> None:
    random = Random(1)
    records = [(1, 90, "often"), (1, 10, "seldom"), (1, 0, "hardly"), (2, 100, "later")]
    first: Counter[str] = Counter()
    for _ in range(2000):
        order = srv_order(records, lambda most: random.randint(0, most))
        assert sorted(order[:3]) == ["hardly", "often", "seldom"]
        assert order[3] == "later"
        first[order[0]] += 1
    assert 1700 < first["often"] < 1900
    assert 120 < first["seldom"] < 280
    assert first["hardly"] < 60
