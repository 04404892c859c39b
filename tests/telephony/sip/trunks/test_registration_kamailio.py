"""Registration against Kamailio, over UDP on loopback, with nonces that live for two seconds."""

import select
import shutil
import socket
import subprocess
import time

import pytest

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.transactions.transactions import (
    Failed,
    RequestReceived,
    ResponseReceived,
    Transactions,
)
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunks import Trunk

pytestmark = pytest.mark.skipif(not shutil.which("kamailio"), reason="kamailio is not installed")

CONFIGURATION = """#!KAMAILIO
debug=0
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{port}
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "pv.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
loadmodule "auth.so"
modparam("registrar", "min_expires", 1)
modparam("registrar", "max_expires", 3)
modparam("auth", "nonce_expire", 2)
modparam("auth", "algorithm", "{algorithm}")
request_route {{
    if ($rm == "REGISTER") {{
        if (!pv_www_authenticate("trunk.test", "secret", "0")) {{
            www_challenge("trunk.test", "1");
            exit;
        }}
        save("location");
        exit;
    }}
    if (!lookup("location")) {{
        sl_send_reply("404", "Not Found");
        exit;
    }}
    t_relay();
}}
"""


class Phone:
    """A socket with transactions and one registration, driven in real time."""

    def __init__(self, server, password="secret", user="1001"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.flow = Flow("UDP", ("127.0.0.1", server), ("127.0.0.1", self.port))
        self.transactions = Transactions(lambda flow: f"127.0.0.1:{self.port}")
        trunk = Trunk(
            "kamailio",
            username=user,
            password=password,
            realm="trunk.test",
            server=f"127.0.0.1:{server}",
            register=True,
        )
        contact = Uri("sip", user=user, host="127.0.0.1", port=self.port)
        self.registration = Registration(trunk, contact, "offhook/test")
        self.registration.start(time.monotonic())
        self.responses = []
        self.answers = {}
        self.asked = []

    def ask(self, user):
        """The status of the response to an OPTIONS for `user`; None until it is there."""
        uri = Uri("sip", user=user, host="127.0.0.1", port=self.flow.remote[1])
        request = Request("OPTIONS", uri)
        call_id = f"ask-{time.monotonic()}"
        for name, value in (
            ("From", f"<sip:asker@127.0.0.1>;tag={self.port}"),
            ("To", f"<{uri}>"),
            ("Call-ID", call_id),
            ("CSeq", "1 OPTIONS"),
            ("Max-Forwards", "70"),
        ):
            request.headers.add(name, value)
        self.transactions.send_request(request, self.flow, time.monotonic())
        return call_id

    def turn(self):
        """Everything that is due now."""
        now = time.monotonic()
        readable, _, _ = select.select([self.socket], [], [], 0.02)
        if readable:
            self.transactions.receive(parse_message(self.socket.recv(65536)), self.flow, now)
        for timed in (self.transactions, self.registration):
            timer = timed.get_timer()
            if timer is not None and timer <= now:
                timed.handle_timer(now)
        while event := self.transactions.next_event():
            self.handle(event, now)
        taken = self.registration.request_to_send()
        if taken is not None:
            self.transactions.send_request(taken[0], self.flow, now)
        for data, _ in self.transactions.messages_to_send():
            self.socket.sendto(data, self.flow.remote)

    def handle(self, event, now):
        match event:
            case ResponseReceived(_, response) if response.cseq.method == "REGISTER":
                self.responses.append(response)
                self.registration.receive(response, now)
            case ResponseReceived(_, response):
                self.answers[response.call_id] = response.status
            case Failed(_, reason):
                self.registration.failed(reason, now)
            case RequestReceived(transaction, request, _):
                self.asked.append(request)
                self.transactions.respond(transaction, respond(request, 200, to_tag="t"), now)

    @property
    def state(self):
        return self.registration.status.state


def until(condition, *phones, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [p.registration.status for p in phones]
        for phone in phones:
            phone.turn()


def answer_for(user, phone, *phones):
    call_id = phone.ask(user)
    until(lambda: call_id in phone.answers, phone, *phones)
    return phone.answers[call_id]


@pytest.fixture(params=["MD5", "SHA-256"])
def kamailio(request, tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "kamailio.cfg"
    path.write_text(CONFIGURATION.format(port=port, algorithm=request.param))
    command = ["kamailio", "-f", str(path), "-DD", "-E", "-m", "16", "-M", "4"]
    with subprocess.Popen([*command, "-Y", str(tmp_path)]) as process:
        yield port
        process.terminate()


def test_a_registration_lives_through_stale_nonces_and_calls_come_by_it(kamailio):
    phone = Phone(kamailio)
    # Kamailio may not listen yet: the request is repeated until it does.
    until(lambda: phone.state is RegistrationState.REGISTERED, phone)
    first = phone.registration.status.expires_at
    lives = {dict(contact.parameters)["expires"] for contact in phone.responses[-1].contacts}
    assert lives == {"3"}, "it gives three seconds, whatever is asked for"
    assert phone.registration.public_address == ("127.0.0.1", phone.port)

    other = Phone(kamailio)
    until(lambda: other.state is RegistrationState.REGISTERED, phone, other)
    assert len(other.responses[-1].contacts) == 2, "two bindings, and each has found its own"

    stranger = Phone(kamailio, password="guess")
    until(lambda: stranger.state is RegistrationState.REFUSED, stranger, phone, other)
    assert len(stranger.responses) == 2
    assert "wrong username or password" in stranger.registration.status.detail

    def went_stale():
        # Kamailio challenges anew without a word about staleness
        statuses = [r.status for r in phone.responses]
        return statuses.count(401) >= 2 and statuses.count(200) >= 3

    until(went_stale, phone, other)
    assert phone.registration.status.expires_at > first
    assert answer_for("1001", other, phone) == 200
    assert phone.asked or other.asked
    assert answer_for("1002", other, phone) == 404

    for each in (phone, other):
        each.registration.unregister(time.monotonic())
    until(lambda: phone.state is other.state is RegistrationState.UNREGISTERED, phone, other)
    assert phone.responses[-1].status == 200
    assert answer_for("1001", other) == 404
