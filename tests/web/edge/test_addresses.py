"""What a server cannot listen at is said before its engines load, with the key and the remedy."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.stack_io import tls_context
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge import server_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.processes_io import serve_all
from offhook.web.workers.engines.call_engines_io import CallEngines

HOST = "127.0.0.1"


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(engines: CallEngines) -> str:
        raise AssertionError("the engines were loaded for nothing")

    monkeypatch.setattr(CallEngines, "open", opened)


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize("serve", [server_io.serve, serve_all])
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"server": {"port": "TAKEN"}}, "server.port: 127.0.0.1:TAKEN is in use: end what listens"),
        (
            {"server": {"port": 0, "admin_listen": "127.0.0.1:TAKEN"}},
            "server.admin_listen: 127.0.0.1:TAKEN is in use",
        ),
        (
            {"server": {"port": 0}, "speech": {"wyoming": "127.0.0.1:TAKEN"}},
            "speech.wyoming: 127.0.0.1:TAKEN is in use",
        ),
        (
            {"server": {"host": "nobody.invalid", "admin_key": "k"}},
            "server.host: 'nobody.invalid' has no address: ",
        ),
        (
            {"server": {"host": "192.0.2.1", "port": 0, "admin_key": "k"}},
            "server.host: 192.0.2.1:0 is not an address of this machine",
        ),
        (
            {"server": {"port": 0}, "sip": {"udp": False, "tcp": "TAKEN"}},
            "sip.tcp: 127.0.0.1:TAKEN is in use: end what listens",
        ),
        (
            {"server": {"port": 0}, "sip": {"udp": "TAKEN", "tcp": False}},
            "sip.udp: 127.0.0.1:TAKEN is in use",
        ),
        (
            {"server": {"port": 0}, "sip": {"host": "192.0.2.1"}},
            "sip.udp: 192.0.2.1:5060 is not an address of this machine",
        ),
        (
            {"server": {"port": 0}, "carriers": [{"provider": "audiosocket", "port": "TAKEN"}]},
            "carriers.audiosocket.port: 127.0.0.1:TAKEN is in use",
        ),
    ],
)
async def test_an_address_that_cannot_be_had_is_named_before_the_engines_load(
    table: dict[str, Any], words: str, serve: Any
) -> None:
    with (
        socket.create_server((HOST, 0)) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        port = str(other.getsockname()[1])
        datagrams.bind((HOST, int(port)))
        given = json.loads(json.dumps(table).replace('"TAKEN"', port).replace("TAKEN", port))
        with pytest.raises(OSError, match=words.replace("TAKEN", port)) as refused:
            await serve(Config.model_validate(given))
    assert str(refused.value).startswith(words.partition(":")[0])


async def test_free_addresses_are_not_in_the_way() -> None:
    config = Config.model_validate({"server": {"host": "localhost", "port": 0}})
    async with server_io.kept_addresses(config) as port:
        assert port
    with socket.create_server((HOST, port)):
        pass


def test_the_file_of_a_certificate_that_is_missing_is_named(tmp_path: Path) -> None:
    certificate, key = tmp_path / "phones.pem", tmp_path / "phones.key"
    settings = SipSettings(tls=0, certificate=certificate, key=key)
    with pytest.raises(SipError, match=r"the certificate .*phones.pem cannot be read: No such"):
        tls_context(settings)
    certificate.write_text("nothing")
    with pytest.raises(SipError, match=r"the key .*phones.key cannot be read: No such"):
        tls_context(settings)
    key.write_text("nothing")
    with pytest.raises(SipError, match=r"phones.pem and .*phones.key do not belong together"):
        tls_context(settings)


async def test_the_port_of_phones_that_is_in_use_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        port = other.getsockname()[1]
        sip = {"udp": port, "tcp": False, "host": HOST}
        edge = Edge(Config.model_validate({"server": {"port": 0}, "sip": sip}), bot=_silent)
        with pytest.raises(ConfigError, match=rf"sip: udp: 127.0.0.1:{port}: .*in use"):
            await edge.start()


async def _silent(arguments: Any) -> None:
    """A bot, so that no engine is loaded."""
