"""[sip] of the configuration: what it means, what is wrong with it, and who may call by it."""

import json
import logging
import os
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from loguru import logger

from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.trunks.extension import Extension
from offhook.telephony.sip.trunks.routes import Route
from offhook.telephony.sip.trunks.trunks import OPTIONS_INTERVAL_S, SipSettings, Trunk
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.edge.placing.requests import callers_allowed, is_risky
from tests.support.ports import free_port
from tests.web.edge.phones import configured, served

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OFFHOOK_")]:
        monkeypatch.delenv(name)


def loaded(text, environment=None):
    Path("offhook.toml").write_text(text)
    return load(None, environment or {})


def test_without_the_table_there_are_no_phones():
    assert loaded("[server]\nport = 1").sip is None


def test_an_empty_table_means_phones_of_this_machine_only():
    sip = loaded("[sip]").sip
    assert (sip.host, sip.udp, sip.tcp, sip.tls, sip.ws, sip.wss) == (
        *("127.0.0.1", 5060, 5060),
        *(None, None, None),
    )


def test_trunks_routes_and_agents_are_read():
    config = loaded(
        """
        [sip]
        host = "0.0.0.0"
        rtp_ports = [20000, 21000]
        [[sip.trunks]]
        name = "provider"
        server = "sip.example.net"
        username = "u"
        password = "secret"
        register = true
        codecs = ["pcma"]
        [[sip.routes]]
        called = "+4930*"
        agent = "sales"
        [agents.sales]
        kind = "silent"
        """
    )
    (trunk,), (route,) = config.sip.trunks, config.sip.routes
    assert (trunk.server, trunk.register, trunk.codecs) == ("sip.example.net", True, ("pcma",))
    assert (route.called, route.agent) == ("+4930*", "sales")
    assert config.agents["sales"].kind == "silent"
    assert config.agent.kind == "frontdesk"
    assert "secret" not in repr(config)


def test_a_transport_can_be_off():
    sip = loaded("[sip]\nudp = false\ntcp = 0").sip
    assert (sip.udp, sip.tcp) == (None, 0)
    sip = loaded("", {"OFFHOOK_SIP_TCP": "false", "OFFHOOK_SIP_UDP": "5080"}).sip
    assert (sip.udp, sip.tcp) == (5080, None)


def test_trunks_come_as_json_in_the_environment():
    trunks = json.dumps([{"name": "pbx", "addresses": ["10.0.0.0/8"]}])
    assert loaded("", {"OFFHOOK_SIP_TRUNKS": trunks}).sip.trunks[0].name == "pbx"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hots = '1'", "sip.hots: "),
        ("host = 'localhost'", "sip.host is not a numeric address: 'localhost'"),
        ("host = ''", "host is not a numeric address"),
        ("public_address = 'me.example'", "public_address is not a numeric address"),
        ("udp = true", "offhook.toml:2: sip.udp must be a port, or false for none"),
        ("udp = 70000", "udp must be a port, not 70000"),
        ("tls = 5061", "tls and wss need a certificate and its key"),
        ("certificate = 'c.pem'", "a certificate needs its key"),
        (
            "trunks = [{name = 'a', server = 's', transport = 'TLS', public_name = 'x.example'}]",
            "trunk 'a': public_name needs certificate and key of [sip]",
        ),
        (
            "trunks = [{name = 'a', public_name = '203.0.113.7'}]",
            "public_name must be a host name, not '203.0.113.7'",
        ),
        ("trunks = [{name = 'a', backup_servers = ['b']}]", "backup_servers needs a server"),
        (
            "trunks = [{name = 'a', server = 's', backup_servers = ['a b']}]",
            "trunk 'a': backup_servers: ",
        ),
        (
            "trunks = [{name = 'a', webrtc = true, srtp = 'off'}]",
            "webrtc always encrypts: srtp must not be off",
        ),
        ("rtp_ports = [1]", "sip.rtp_ports"),
        ("trunks = [{name = 'a', sever = 'x'}]", "sip.trunks.0.sever: "),
        ("trunks = [{name = 'a', codecs = ['g729']}]", "unknown codec 'g729'"),
        ("trunks = [{name = 'a'}, {name = 'a'}]", "two trunks are named 'a'"),
        ("routes = [{agent = 'nobody'}]", "sip.routes.0.agent: no agent is called 'nobody'"),
        ("routes = [{trunk = 'none'}]", "a route names an unknown trunk 'none'"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text, says):
    with pytest.raises(ConfigError) as caught:
        loaded(f"[sip]\n{text}")
    assert says in str(caught.value)
    assert not str(caught.value).startswith(":")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"collector": "a b"}, "hep: collector"),
        ({"collector": "homer:99999"}, "hep: collector"),
        ({"collector": "homer", "agent_id": -1}, "agent_id"),
        ({"agent_id": 1}, "collector"),
        ({"collector": "homer", "port": 1}, "port"),
    ],
)
def test_a_collector_that_is_none_is_named(table, fault):
    with pytest.raises(ValueError, match=fault):
        Config.model_validate({"sip": {"hep": table}})


def test_the_example_of_phones_is_the_defaults():
    text = (ROOT / "offhook.example.toml").read_text()
    lines = text[text.index("# [sip]\n") : text.index("\n# Carriers")].splitlines()
    sip = Config.model_validate(tomllib.loads("\n".join(line[2:] for line in lines))).sip
    (trunk,), (route,) = sip.trunks, sip.routes
    assert trunk == Trunk(
        "provider",
        options_seconds=OPTIONS_INTERVAL_S,
        caller_id_header="pai",
        media_timeout_seconds=30,
        contact="as given",
        machine_detection="off",
        dtmf_tones=True,
    )
    assert route == Route()
    assert sip.hep == HepSettings("10.0.0.9:9060")
    shown = dict.fromkeys(("certificate", "key", "authorities", "hep"))
    shown |= {"trunks": (), "routes": (), "extensions": {}}
    assert replace(sip, **shown) == SipSettings()
    assert sip.extensions == {"101": Extension(password="…")}
    for settings in (SipSettings, Trunk, Route, Extension):
        assert {f.name for f in fields(settings)} - {"user_agent", "agent"} <= {
            line[2:].partition(" ")[0] for line in lines
        } | {"trunks", "routes", "extensions"}


# --- who may call ---


@pytest.mark.parametrize(
    ("trunk", "says"),
    [
        ({}, "nobody: no trunk has addresses, a server or a password; callers get no answer"),
        ({"addresses": ("10.0.0.0/8",)}, "pbx: 10.0.0.0/8; others get no answer"),
        ({"server": "sip.example.net"}, "pbx: its server sip.example.net; others get no answer"),
        ({"username": "ann", "password": "p"}, "pbx: whoever has the password of 'ann'; others"),
        (
            {"username": "u", "password": "p", "server": "s.example", "register": True},
            "pbx: its server s.example; others",
        ),
    ],
)
def test_who_may_call_is_said_in_words(trunk, says):
    assert callers_allowed(SipSettings(trunks=(Trunk("pbx", **trunk),))).startswith(says)


def test_others_are_refused_or_let_in_as_configured():
    assert "others are refused (403)" in callers_allowed(
        SipSettings(trunks=(Trunk("a", server="b"),), unknown="refuse")
    )
    lab = SipSettings(allow_anonymous=True)
    assert callers_allowed(lab).startswith("everybody who reaches this machine")
    assert not is_risky(lab)
    assert is_risky(SipSettings(host="0.0.0.0", allow_anonymous=True))
    assert not is_risky(SipSettings(host="0.0.0.0"))


@pytest.fixture
def lines():
    """What is logged."""
    said = []
    sink = logger.add(lambda message: said.append(message.record), level="DEBUG")
    yield said
    logger.remove(sink)
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)


@pytest.mark.parametrize(("anonymous", "level"), [(False, "INFO"), (True, "WARNING")])
async def test_a_start_says_in_one_line_who_may_call(lines, anonymous, level):
    port = free_port()
    settings = {"host": "0.0.0.0", "udp": port, "tcp": False, "allow_anonymous": anonymous}
    async with served(configured("", trunks=[{"name": "a"}], **settings)):
        pass
    (line,) = [record for record in lines if "who may call" in record["message"]]
    assert line["level"].name == level
    assert ("everybody" if anonymous else "nobody") in line["message"]


async def test_a_port_that_is_taken_stops_the_start_with_one_line():
    async with served(configured("")) as first:
        with pytest.raises(ConfigError, match=r"sip: .*in use.*offhook doctor"):
            async with served(configured("", udp=first.port)):
                pass


@pytest.mark.parametrize(
    ("seconds", "redis", "words"),
    [
        (3, "", "recovery_seconds needs redis"),
        (0.5, "redis://h", "recovery_seconds must be 0, or 1 to 60"),
        (61, "redis://h", "recovery_seconds must be 0, or 1 to 60"),
    ],
)
def test_recovery_needs_redis_and_a_sensible_time(seconds, redis, words):
    with pytest.raises(ValueError, match=words):
        Config.model_validate({"server": {"redis": redis}, "sip": {"recovery_seconds": seconds}})
