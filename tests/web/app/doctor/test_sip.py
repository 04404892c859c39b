"""What the doctor says of phones is so, and says what to do."""

import asyncio
import datetime
import re
import socket
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from offhook.pipeline.engines.embedded import here_io
from offhook.telephony.sip.network.resolver_io import ResolveError
from offhook.telephony.sip.trunks.known_services import unmet_requirements
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.app.doctor import sip_io as doctor_sip_io
from offhook.web.app.doctor.finding import Finding
from offhook.web.app.doctor.report_io import examine
from offhook.web.app.doctor.sip_io import examine_phones
from offhook.web.config.config import Config
from tests.support.ports import free_port
from tests.telephony.sip.phones import (
    endpoint,
    kamailio,
    needs_kamailio,
    port_of,
    write_certificate,
    write_tone,
)
from tests.telephony.sip.services.authority import Authority
from tests.telephony.sip.services.service import known_hosts
from tests.telephony.sip.services.teams import Teams
from tests.web.edge.phones import ScriptedPhone

NOBODY = Trunk("nobody", addresses=("192.0.2.1",))


def looked(max_calls: int = 20, **settings: object) -> dict[str, Finding]:
    port = free_port()
    chosen = {"udp": port, "tcp": port, "trunks": (NOBODY,), **settings}
    found: Iterable[Finding] = examine_phones(SipSettings(**chosen), max_calls)
    return {finding.subject: finding for finding in found}


async def looked_from_outside(**settings: object) -> dict[str, Finding]:
    """While something runs in this loop: the doctor has one of its own."""
    return await asyncio.to_thread(lambda: looked(**settings))


# --- this machine ---


def test_all_is_well_with_phones_of_this_machine():
    found = looked()
    assert {f.verdict for f in found.values()} == {"ok"}
    assert found["trunk nobody"].detail == "takes calls from 192.0.2.1"
    assert found["phones' address"].detail.endswith("phones of this machine only")


def test_a_port_that_is_taken_is_named():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = looked(udp=port)
    assert found["phones by UDP"].verdict == "note"
    assert f"port {port} is taken" in found["phones by UDP"].detail
    assert found["phones by TCP"].verdict == "ok"


def test_a_host_that_is_not_here_is_said_so():
    found = looked(host="192.0.2.77")
    assert found["phones by UDP"].verdict == "fails"
    assert "[sip] host must be an address of this machine" in found["phones by UDP"].detail


def test_without_any_transport_nobody_can_call():
    assert looked(udp=None, tcp=None)["phones"].verdict == "fails"


def test_who_may_call_is_said():
    assert "192.0.2.1" in looked()["who may call"].detail
    found = looked(trunks=(Trunk("empty"),))
    assert (found["who may call"].verdict, found["trunk empty"].verdict) == ("note", "fails")
    assert "give it addresses, a password or a server" in found["trunk empty"].detail


def test_media_ports_must_do_for_all_calls():
    judged = {(20000, 20037): "fails", (20000, 20041): "note", (20001, 20082): "ok"}
    for ports, verdict in judged.items():
        finding = looked(rtp_ports=ports)["phones' media ports"]
        assert finding.verdict == verdict, finding
    assert looked(rtp_ports=(20000, 20037), max_calls=9)["phones' media ports"].verdict == "ok"
    assert looked(rtp_ports=(20000, 20037), max_calls=500)["phones' media ports"].verdict == "fails"


def test_the_address_that_others_are_told_is_compared_with_ours(monkeypatch):
    monkeypatch.setattr(doctor_sip_io, "get_host_addresses", lambda **kinds: ["10.0.0.9"])
    subject = "phones' address"
    assert looked(public_address="10.0.0.9")[subject].verdict == "ok"
    behind = looked(public_address="203.0.113.7")[subject]
    assert behind.verdict == "note"
    assert "the router must pass on UDP" in behind.detail
    assert "16384–32767" in behind.detail
    private = looked(host="0.0.0.0")[subject]
    assert "set [sip] public_address" in private.detail
    monkeypatch.setattr(doctor_sip_io, "get_host_addresses", lambda **kinds: ["198.51.100.1"])
    assert looked(host="0.0.0.0")[subject].verdict in ("ok", "note")


def test_the_certificate_is_read(tmp_path, monkeypatch):
    certificate, key = write_certificate(tmp_path)
    files = {"tls": free_port(), "certificate": certificate, "key": key}
    subject = "phones' certificate"
    finding = looked(**files)[subject]
    assert finding.verdict == "note"
    assert "localhost" in finding.detail
    assert "127.0.0.1" in finding.detail
    monkeypatch.setattr(doctor_sip_io, "EXPIRES_SOON", datetime.timedelta(0))
    assert "self-signed" in looked(**files)[subject].detail
    assert looked(**{**files, "key": certificate})[subject].verdict == "fails"
    assert looked(**{**files, "certificate": tmp_path / "none"})[subject].verdict == "fails"

    class Tomorrow(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + datetime.timedelta(days=400)

    monkeypatch.setattr(doctor_sip_io, "datetime", Tomorrow)
    assert "not valid today" in looked(**files)[subject].detail


def test_phones_are_looked_at_when_the_configuration_has_them(tmp_path, monkeypatch):
    for name in ("_opus", "_vad", "_smart_turn"):
        monkeypatch.setattr(f"offhook.web.app.doctor.report_io.{name}", lambda: "not asked")
    for name in ("_pocketsphinx", "_flite", "_espeak"):
        monkeypatch.setattr(here_io, name, lambda: "not asked")
    path = tmp_path / "offhook.toml"
    path.write_text("[server]\nport = 0\n")
    assert not [f for f in examine(path) if "phones" in f.subject]
    path.write_text(f"[sip]\nudp = {free_port()}\ntcp = false\n")
    assert [f for f in examine(path) if f.subject == "phones by UDP"]


# --- trunks ---


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(doctor_sip_io, "TRUNK_S", 1.0)


@pytest.mark.usefixtures("impatient")
def test_a_trunk_that_is_not_there_is_said_so():
    trunks = (
        Trunk("udp", server="127.0.0.1:9"),
        Trunk("tcp", server="127.0.0.1:9", transport="TCP"),
        Trunk("name", server="nowhere.invalid"),
        Trunk("far", server="192.0.2.1"),
    )
    found = looked(trunks=trunks)
    assert {found[f"trunk {t.name}"].verdict for t in trunks} == {"fails"}
    assert "does not answer within 1 s" in found["trunk udp"].detail
    assert "127.0.0.1:9 by TCP cannot be connected to" in found["trunk tcp"].detail
    assert "nowhere.invalid" in found["trunk name"].detail
    assert 'set [sip] host = "0.0.0.0"' in found["trunk far"].detail


async def test_a_trunk_by_tls_is_looked_at_with_the_authorities_of_the_settings(tmp_path):
    certificate, key = write_certificate(tmp_path)
    async with endpoint(certificate=certificate, key=key, tls=0) as (pbx, _):
        where = f"127.0.0.1:{port_of(pbx, 'TLS')}"
        trunks = (Trunk("pbx", server=where, transport="TLS"),)
        strange = await looked_from_outside(trunks=trunks)
        known = await looked_from_outside(trunks=trunks, authorities=certificate)
        (tmp_path / "empty.pem").touch()
        none = await looked_from_outside(trunks=trunks, authorities=tmp_path / "empty.pem")
    assert strange["trunk pbx"].verdict == "fails"
    assert "the certificate of 127.0.0.1 is self-signed" in strange["trunk pbx"].detail
    assert known["trunk pbx"].verdict == "ok"
    assert known["trunks' authorities"].detail == f"{certificate}: 1, besides the system's"
    assert none["trunks' authorities"].verdict == "fails"


async def test_a_trunk_that_answers_is_there_whatever_it_answers():
    phone = ScriptedPhone()
    async with phone.running() as where:
        found = await looked_from_outside(trunks=(Trunk("pbx", server=where),))
    assert found["trunk pbx"].verdict == "ok"
    assert f"{where} by UDP answers (200 OK)" in found["trunk pbx"].detail
    assert [r.method for r in phone.requests] == ["OPTIONS"]


@pytest.mark.parametrize(
    ("status", "verdict", "says"),
    [
        (200, "ok", "u may register; registered now: nobody"),
        (403, "fails", "403 Forbidden: look at username (u), password"),
        (500, "fails", "500 Server Internal Error: ask whoever runs it"),
    ],
)
async def test_what_the_registrar_says_is_told_and_nothing_is_changed_there(status, verdict, says):
    phone = ScriptedPhone(register=status)
    async with phone.running() as where:
        trunk = Trunk("pbx", server=where, username="u", register=True)
        found = await looked_from_outside(trunks=(trunk,))
    assert found["trunk pbx, registration"].verdict == verdict
    assert says in found["trunk pbx, registration"].detail
    register = await phone.asked("REGISTER")
    assert "Contact" not in register.headers
    assert register.from_.uri.user == "u"


@needs_kamailio
@pytest.mark.parametrize("transport", ["UDP", "TCP"])
async def test_a_password_is_tried_with_a_real_registrar(tmp_path, transport):
    async with kamailio(tmp_path) as port:
        common = {"server": f"127.0.0.1:{port}", "register": True, "transport": transport}
        trunks = (
            Trunk("right", username="1001", password="secret", **common),
            Trunk("wrong", username="1002", password="guess", **common),
        )
        found = await looked_from_outside(trunks=trunks)
    assert found["trunk right"].verdict == found["trunk wrong"].verdict == "ok"
    assert found["trunk right, registration"].detail == "1001 may register; registered now: nobody"
    assert found["trunk wrong, registration"].verdict == "fails"
    assert "look at username (1002), password" in found["trunk wrong, registration"].detail


# --- far ends with rules of their own ---

TEAMS = Trunk(
    "teams",
    server="sip.pstnhub.microsoft.com",
    addresses=("52.112.0.0/14",),
    transport="TLS",
    public_name="sbc.example.test",
    srtp="required",
)
WHATSAPP = Trunk(
    "whatsapp",
    server="sip:wa.meta.vc;transport=tls",
    transport="TLS",
    username="4930123456",
    password="p",
    caller_id="+4930123456",
    caller_id_header="from",
    public_name="sbc.example.test",
    webrtc=True,
    reinvites=False,
)
LACKS = [
    (TEAMS, {}, None),
    (TEAMS, {"transport": "UDP"}, 'transport = "TLS"'),
    (TEAMS, {"public_name": ""}, "public_name, the name of this machine in Teams"),
    (TEAMS, {"addresses": ()}, 'addresses = ["52.112.0.0/14", "52.122.0.0/15"]'),
    (TEAMS, {"srtp": "optional"}, 'srtp = "required"'),
    (TEAMS, {"codecs": ("opus",)}, "codecs with G.722 or G.711"),
    (WHATSAPP, {}, None),
    (WHATSAPP, {"username": "+4930123456"}, "username, the number without +"),
    (WHATSAPP, {"password": ""}, "Meta's password for it"),
    (WHATSAPP, {"caller_id": "4930123456"}, "caller_id, the number with +"),
    (WHATSAPP, {"caller_id_header": None}, 'caller_id_header = "from"'),
    (WHATSAPP, {"public_name": ""}, "public_name, the SIP server that the number is set to"),
    (WHATSAPP, {"webrtc": False}, "webrtc = true, or srtp"),
    (WHATSAPP, {"webrtc": False, "srtp": "required"}, None),
    (WHATSAPP, {"codecs": ("pcmu",)}, 'codecs with "opus"'),
    (WHATSAPP, {"reinvites": True}, "reinvites = false"),
    (WHATSAPP, {"register": True}, "register = false"),
]


@pytest.mark.parametrize(("trunk", "change", "words"), LACKS)
def test_what_a_known_service_wants_is_said(tmp_path, monkeypatch, trunk, change, words):
    async def nowhere(self, uri, transport):
        raise ResolveError("no network here")

    monkeypatch.setattr(doctor_sip_io.Resolver, "resolve", nowhere)
    certificate, key = Authority(tmp_path).issue("*.example.test")
    files = {"tls": free_port(), "certificate": certificate, "key": key}
    found = looked(trunks=(replace(trunk, **change),), **files)
    finding = next((f for subject, f in found.items() if ", for " in subject), None)
    if words is None:
        assert finding is None
        assert found[f"trunk {trunk.name}, our name"].verdict == "ok"
    else:
        assert finding.verdict == "fails"
        assert words in finding.detail
    without = looked(trunks=(trunk,), **{**files, "tls": None})
    assert "[sip] tls = 5061" in next(f for s, f in without.items() if ", for " in s).detail


def test_a_certificate_for_another_name_than_a_trunk_knows_is_said(tmp_path):
    certificate, key = Authority(tmp_path).issue("*.example.test", "other.test")
    files = {"tls": free_port(), "certificate": certificate, "key": key}
    for name, verdict in (
        ("a.example.test", "ok"),
        ("OTHER.test", "ok"),
        ("a.b.example.test", "fails"),
        ("example.test", "fails"),
    ):
        known = Trunk("far", addresses=("192.0.2.1",), public_name=name)
        finding = looked(trunks=(known,), **files)["trunk far, our name"]
        assert finding.verdict == verdict, name
        assert verdict == "ok" or "the certificate is for *.example.test, other.test" in (
            finding.detail
        )


def test_the_examples_of_the_documents_lack_nothing():
    text = (Path(__file__).parents[4] / "docs/phones.md").read_text()
    services = {}
    for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        sip = Config.model_validate(tomllib.loads(example)).sip
        for trunk in sip.trunks if sip is not None else ():
            service, unmet = unmet_requirements(trunk, sip)
            assert not unmet, (service, unmet)
            services[service] = trunk
    assert {"Microsoft Teams", "WhatsApp"} < set(services)
    teams = services["Microsoft Teams"]
    assert [uri.host.split(".")[0] for uri in teams.server_uris] == ["sip", "sip2", "sip3"]


@pytest.mark.parametrize(
    ("ours", "verdict", "words"),
    [
        ("sbc.example.test", "ok", "answers (200 OK)"),
        ("other.example.test", "fails", "answers (403 Forbidden): does it know us as sbc.example"),
    ],
)
async def test_a_server_is_asked_by_our_name_and_with_our_certificate(
    tmp_path, monkeypatch, ours, verdict, words
):
    known_hosts(monkeypatch, tmp_path, sip_pstnhub_test="127.0.0.1")
    authority = Authority(tmp_path)
    service = Teams(authority.issue("*.pstnhub.test"), authority.file)
    async with service.listening():
        certificate, key = authority.issue(ours)
        trunk = replace(TEAMS, server=f"sip.pstnhub.test:{service.port}")
        files = {"certificate": certificate, "key": key, "authorities": authority.file}
        found = await looked_from_outside(trunks=(trunk,), tls=free_port(), **files)
    assert found["trunk teams"].verdict == verdict
    assert words in found["trunk teams"].detail


def test_files_that_callers_hear_are_read(tmp_path):
    music = tmp_path / "music.wav"
    write_tone(music, 440, 8000, seconds=3)
    trunks = [
        Trunk(name, addresses=("127.0.0.1",), ringback=file)
        for name, file in (("a", music), ("b", music), ("c", "eu"))
    ]
    assert looked(trunks=tuple(trunks))["ringback"].detail == f"{music}: 3 s"
    none = looked(trunks=(Trunk("a", addresses=("127.0.0.1",), ringback=tmp_path),))["ringback"]
    assert (none.verdict, none.detail) == ("fails", f"{tmp_path}: is a directory")
