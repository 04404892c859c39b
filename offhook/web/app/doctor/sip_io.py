"""SIP checks of `offhook doctor`: ports, certificate, addresses, trunks."""

import asyncio
import errno
import secrets
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from time import monotonic

from aioice.ice import get_host_addresses
from cryptography import x509

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import FileError
from offhook.media.files.sound_io import read_sound
from offhook.media.pcm import RATE_OUT
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import CSeq, Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, Response, parse_message
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.resolver_io import ResolveError, Resolver, Target
from offhook.telephony.sip.network.stream_io import trusting
from offhook.telephony.sip.network.transport_io import Transports
from offhook.telephony.sip.network.udp_io import listening_hosts, local_address_for
from offhook.telephony.sip.ringbacks_io import MAX_RINGBACK_S
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.stack_io import tls_context
from offhook.telephony.sip.transactions.transactions import Failed, ResponseReceived, Transactions
from offhook.telephony.sip.trunks.known_services import unmet_requirements
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.app.doctor.finding import Finding, Outcome
from offhook.web.config.config import TRANSPORTS
from offhook.web.edge.placing.requests import callers_allowed, may_call

TRUNK_S = 6.0
"""Time limit in s for a trunk's server to answer a request."""
EXPIRES_SOON = timedelta(days=14)
TRIED_SERVERS = 3
"""Maximum servers tried per trunk."""


def examine_phones(settings: SipSettings, max_calls: int) -> Iterator[Finding]:
    """Yields the findings; `max_calls` is the maximum calls of the process."""
    yield Finding(
        "who may call", "ok" if _somebody(settings) else "note", callers_allowed(settings)
    )
    yield from _ports(settings)
    if settings.certificate is not None:
        yield _certificate(settings)
    for trunk in settings.trunks:
        yield from _requirements(trunk, settings)
    yield _public_address(settings)
    yield _media_ports(settings, min(max_calls, settings.max_calls))
    authorities: ssl.SSLContext | None = None
    if settings.authorities is not None:
        try:
            authorities = trusting(settings.authorities)
        except SipError as error:
            yield Finding("trunks' authorities", "fails", str(error))
        else:
            count = len(x509.load_pem_x509_certificates(settings.authorities.read_bytes()))
            detail = f"{settings.authorities}: {count}, besides the system's"
            yield Finding("trunks' authorities", "ok", detail)
    yield from _ringbacks(settings)
    yield from asyncio.run(_trunks(settings, authorities))


def _ringbacks(settings: SipSettings) -> Iterator[Finding]:
    """Yields a finding for each file that callers hear while a transfer rings."""
    for path in dict.fromkeys(t.ringback for t in settings.trunks if isinstance(t.ringback, Path)):
        try:
            sound = read_sound(path, MAX_RINGBACK_S)
        except (FileError, DecoderUnavailable) as error:
            yield Finding("ringback", "fails", str(error))
        else:
            yield Finding("ringback", "ok", f"{path}: {len(sound) / RATE_OUT:.0f} s")


def _somebody(settings: SipSettings) -> bool:
    open_to_some = settings.allow_anonymous or bool(settings.extensions)
    return open_to_some or any(map(may_call, settings.trunks))


# --- this machine ---


def _ports(settings: SipSettings) -> Iterator[Finding]:
    """Yields a finding for each listener."""
    any_transport = False
    for transport in TRANSPORTS:
        port = getattr(settings, transport)
        if port is None:
            continue
        any_transport = True
        kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
        where = f"{settings.host} port {port}"
        try:
            _bind(settings.host, port, kind)
        except OSError as error:
            verdict, detail = _why_not(error, where)
        else:
            verdict, detail = "ok", f"{where} is free"
        yield Finding(f"phones by {transport.upper()}", verdict, detail)
    if not any_transport:
        yield Finding("phones", "fails", "every transport of [sip] is off: set udp = 5060")


def _bind(host: str, port: int, kind: socket.SocketKind) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _why_not(error: OSError, where: str) -> tuple[Outcome, str]:
    if isinstance(error, PermissionError):
        return "fails", f"{where} is not for this user: take a port from 1024 on"
    if error.errno == errno.EADDRINUSE:
        return "note", f"{where} is taken: this server runs already, or another program has it"
    return "fails", f"{where}: {error.strerror}; [sip] host must be an address of this machine"


def _certificate(settings: SipSettings) -> Finding:
    subject = "phones' certificate"
    assert settings.certificate is not None
    try:
        tls_context(settings)
        certificate = x509.load_pem_x509_certificate(settings.certificate.read_bytes())
    except (OSError, ValueError) as error:
        return Finding(subject, "fails", str(error))
    until = certificate.not_valid_after_utc
    names = f"for {', '.join(_names(certificate)) or 'no name'}, until {until:%Y-%m-%d}"
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= until:
        return Finding(subject, "fails", f"{names}: not valid today, phones will refuse it")
    if until - now < EXPIRES_SOON:
        return Finding(subject, "note", f"{names}: renew it, and restart the server")
    if certificate.issuer == certificate.subject:
        return Finding(subject, "note", f"{names}; self-signed: each phone must trust it")
    return Finding(subject, "ok", names)


def _names(certificate: x509.Certificate) -> list[str]:
    """Returns the names that phones compare with the one dialled (RFC 5922 §7.1)."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return [str(attribute.value) for attribute in common]
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _requirements(trunk: Trunk, settings: SipSettings) -> Iterator[Finding]:
    """Checks our name at a trunk, and what its service requires."""
    if trunk.public_name and settings.certificate is not None:
        subject = f"trunk {trunk.name}, our name"
        with suppress(OSError, ValueError):  # which is a finding of its own
            certificate = x509.load_pem_x509_certificate(settings.certificate.read_bytes())
            if any(_covers(name, trunk.public_name) for name in _names(certificate)):
                yield Finding(subject, "ok", f"{trunk.public_name} is in the certificate")
            else:
                names = ", ".join(_names(certificate)) or "no name"
                detail = f"the certificate is for {names}, and not for {trunk.public_name}"
                yield Finding(subject, "fails", f"{detail}: get one that has this name")
    service, unmet = unmet_requirements(trunk, settings)
    if unmet:
        detail = f"needs {'; '.join(unmet)}"
        yield Finding(f"trunk {trunk.name}, for {service}", "fails", detail)


def _covers(pattern: str, name: str) -> bool:
    """Whether a certificate's name, perhaps with a wildcard for its first label, is that of a host
    (RFC 6125 §6.4.3)."""
    pattern, name = pattern.lower(), name.lower()
    wildcard = pattern.startswith("*.") and pattern[1:] == name[name.find(".") :]
    return pattern == name or wildcard


def _public_address(settings: SipSettings) -> Finding:
    """Checks the address announced to phones and trunks."""
    subject, own = "phones' address", get_host_addresses(use_ipv4=True, use_ipv6=True)
    low, high = settings.rtp_ports
    public = settings.public_address
    if public in own:
        return Finding(subject, "ok", f"{public}, of this machine")
    if public:
        listening = ((name.upper(), getattr(settings, name)) for name in TRANSPORTS)
        ports = ", ".join(f"{name} {port}" for name, port in listening if port)
        here = ", ".join(own) or "loopback only"
        detail = f"{public} is not of this machine ({here}): the router must pass on {ports}"
        return Finding(subject, "note", f"{detail} and UDP {low}–{high}")
    if ip_address(settings.host).is_loopback:
        return Finding(subject, "ok", f"{settings.host}: phones of this machine only")
    if own and all(ip_address(a).is_private for a in own):
        detail = f"{', '.join(own)}: for phones and trunks outside set [sip] public_address"
        return Finding(subject, "note", f"{detail} to the router's and let it pass on our ports")
    return Finding(subject, "ok", ", ".join(own) or settings.host)


def _media_ports(settings: SipSettings, calls: int) -> Finding:
    """Checks the RTP port range; a call uses two ports, which stay reserved for a while
    afterwards."""
    low, high = settings.rtp_ports
    pairs = (high + 1 - (low + low % 2)) // 2
    detail = f"{low}–{high}: {pairs} calls"
    if pairs < calls:
        detail += f", and the server takes {calls}: make [sip] rtp_ports wider, two for each"
        return Finding("phones' media ports", "fails", detail)
    if pairs < 2 * calls:
        detail += " at a time; ports rest for 30 s after a call, so twice as many are better"
        return Finding("phones' media ports", "note", detail)
    return Finding("phones' media ports", "ok", detail)


# --- the trunks ---


async def _trunks(settings: SipSettings, authorities: ssl.SSLContext | None) -> Sequence[Finding]:
    """Checks all trunks concurrently."""
    looking = (_trunk(settings, trunk, authorities) for trunk in settings.trunks)
    looked = await asyncio.gather(*looking)
    return [finding for findings in looked for finding in findings]


async def _trunk(
    settings: SipSettings, trunk: Trunk, authorities: ssl.SSLContext | None
) -> list[Finding]:
    subject = f"trunk {trunk.name}"
    if not trunk.server:
        who = may_call(trunk)
        if not who:
            detail = "neither calls us nor is called: give it addresses, a password or a server"
            return [Finding(subject, "fails", detail)]
        return [Finding(subject, "ok", f"takes calls from {who}")]
    try:
        targets = await _targets(trunk)
    except ResolveError as error:
        return [Finding(subject, "fails", f"{error}; look at its server, and at the name servers")]
    if ip_address(settings.host).is_loopback and not ip_address(targets[0].host).is_loopback:
        detail = f"{targets[0].host} cannot be reached from {settings.host}"
        return [Finding(subject, "fails", f'{detail}: set [sip] host = "0.0.0.0"')]
    prober = Prober(settings.host, authorities)
    try:
        if settings.certificate is not None and settings.key is not None:
            with suppress(OSError, ValueError):  # which is a finding of its own
                prober.identify(settings.certificate, settings.key, settings.tls)
        await prober.start()
        return await _ask(prober, trunk, targets[:TRIED_SERVERS])
    except OSError as error:
        return [Finding(subject, "fails", f"{settings.host}: {error.strerror}")]
    finally:
        await prober.close()


async def _targets(trunk: Trunk) -> list[Target]:
    """Resolves all servers of a trunk, in the order to try. Raises ResolveError."""
    found = [await Resolver().resolve(uri, trunk.transport) for uri in trunk.server_uris]
    return [target for targets in found for target in targets]


async def _ask(prober: "Prober", trunk: Trunk, targets: Sequence[Target]) -> list[Finding]:
    """Queries the first server that answers at all."""
    subject, faults = f"trunk {trunk.name}", []
    for t in targets:
        flow = prober.flow_to(t, trunk.tls_verify)
        answer = await prober.ask(trunk, "OPTIONS", flow)
        where = f"{t.host}:{t.port} by {t.transport}"
        if isinstance(answer, Response):
            said = f"{where} answers ({answer.status} {shown(answer.reason)})"
            if trunk.public_name and answer.status == 403:
                unknown = (
                    f"does it know us as {trunk.public_name}, and is our certificate for that?"
                )
                return [Finding(subject, "fails", f"{said}: {unknown}")]
            return [Finding(subject, "ok", said), *await _registers(prober, trunk, flow)]
        faults.append(f"{where} {answer}")
    hint = "look at its server and transport, and at firewalls"
    return [Finding(subject, "fails", f"{'; '.join(faults)}: {hint}")]


async def _registers(prober: "Prober", trunk: Trunk, flow: Flow) -> list[Finding]:
    """Sends a REGISTER without a Contact, which queries the bindings and changes nothing (RFC 3261
    §10.2.3)."""
    if not trunk.register:
        return []
    subject, user = f"trunk {trunk.name}, registration", trunk.username
    digest = DigestClient(user, trunk.password, trunk.realm)
    answer = await prober.ask(trunk, "REGISTER", flow, digest)
    if not isinstance(answer, Response):
        return [Finding(subject, "fails", f"the registrar {answer}")]
    said = f"{answer.status} {shown(answer.reason)}"
    if answer.status == 200:
        count = len(answer.contacts)
        detail = f"{user} may register; registered now: {count or 'nobody'}"
        return [Finding(subject, "ok", detail)]
    if answer.status in (401, 407, 403):
        detail = f"{said}: look at username ({user}), password, realm and domain"
        return [Finding(subject, "fails", detail)]
    return [Finding(subject, "fails", f"{said}: ask whoever runs it")]


class Prober:
    """Sends one request at a time and waits for its response."""

    def __init__(self, host: str, authorities: ssl.SSLContext | None = None) -> None:
        """`authorities` verifies the servers' certificates; None: the system's."""
        self._host = host
        self._port = 0
        self._transports = Transports(self._received, self._closed, authorities=authorities)
        self._transactions = Transactions(self._sent_by)
        self._answer: asyncio.Future[Response | str]
        self._tls_port: int | None = None

    def identify(self, certificate: Path, key: Path, tls_port: int | None) -> None:
        """Show a certificate to servers that ask for one. Raises OSError, ssl.SSLError among
        others."""
        self._transports.identify(certificate, key)
        self._tls_port = tls_port

    async def start(self) -> None:
        for host in listening_hosts(self._host):
            _, self._port = await self._transports.listen("UDP", host, self._port)

    async def close(self) -> None:
        await self._transports.close()

    def flow_to(self, target: Target, verify: bool) -> Flow:
        t = target
        return self._transports.flow_to(t.transport, t.host, t.port, t.server_name, verify)

    async def ask(
        self, trunk: Trunk, method: str, flow: Flow, digest: DigestClient | None = None
    ) -> Response | str:
        """Returns the final response, or a description of why there is none."""
        request = _request(trunk, method)
        if trunk.public_name and method == "OPTIONS":
            port = self._tls_port if flow.transport == "TLS" else None
            contact = Uri("sip", host=trunk.public_name, port=port)
            contact = contact.with_parameter("transport", flow.transport.lower())
            request.headers.add("Contact", f"<{contact}>")
        try:
            async with asyncio.timeout(TRUNK_S):
                while True:
                    answer = await self._send(request, flow)
                    if isinstance(answer, str) or digest is None or answer.status not in (401, 407):
                        return answer
                    again = digest.authorize(answer, request)
                    if again is None:
                        return answer
                    request = again
        except TimeoutError:
            return f"does not answer within {TRUNK_S:.0f} s"

    async def _send(self, request: Request, flow: Flow) -> Response | str:
        self._answer = asyncio.get_running_loop().create_future()
        self._transactions.send_request(request, flow, monotonic())
        self._work()
        while not self._answer.done():
            timer = self._transactions.get_timer()
            wait = None if timer is None else max(0.0, timer - monotonic())
            done, _ = await asyncio.wait((self._answer,), timeout=wait)
            if not done:
                self._transactions.handle_timer(monotonic())
                self._work()
        return self._answer.result()

    def _work(self) -> None:
        for data, flow in self._transactions.messages_to_send():
            self._transports.send(data, flow)
        while (event := self._transactions.next_event()) is not None:
            answer: Response | str | None = None
            if isinstance(event, ResponseReceived) and event.response.status >= 200:
                answer = event.response
            elif isinstance(event, Failed):
                fault = self._transports.fault_of(event.transaction.flow)
                answer = "cannot be connected to" + (f": {fault}" if fault else "")
            if answer is not None and not self._answer.done():
                self._answer.set_result(answer)

    def _received(self, data: bytes, flow: Flow) -> None:
        with suppress(SipError):
            message = parse_message(data)
            if isinstance(message, Response):
                self._transactions.receive(message, flow, monotonic())
                self._work()

    def _closed(self, flow: Flow) -> None:
        self._transactions.flow_failed(flow, monotonic())
        self._work()

    def _sent_by(self, flow: Flow) -> str:
        host, port = flow.local[0], self._port
        if not host or ip_address(host).is_unspecified:
            host = local_address_for(flow.remote[0])
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _request(trunk: Trunk, method: str) -> Request:
    ours = trunk.address_of_record
    if trunk.public_name and method == "OPTIONS":
        ours = replace(ours, host=trunk.public_name)
    tagged = NameAddr(ours, parameters=(("tag", secrets.token_hex(8)),))
    headers = Headers(
        [
            ("From", str(tagged)),
            ("To", str(NameAddr(trunk.address_of_record))),
            ("Call-ID", secrets.token_hex(16)),
            ("CSeq", str(CSeq(1, method))),
            ("Max-Forwards", "70"),
            ("User-Agent", "offhook doctor"),
        ]
    )
    return Request(method, trunk.registrar, headers)
