"""The SIP stack of one process: the user agent with its sockets, timer and trace.

Each received message goes to the user agent, and `process` then sends messages and reports events
at once, on the event loop.
"""

import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from time import monotonic

from offhook.telephony.sip.capture.hep_io import HepExport
from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.network.stream_io import trusting
from offhook.telephony.sip.network.timer_io import CoreTimer
from offhook.telephony.sip.network.transport_io import Transports
from offhook.telephony.sip.network.udp_io import LocalAddresses, listening_hosts
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.trunks.extension import withdrawn
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE, is_keep_alive
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.telephony.sip.user_agent import UserAgent, UserAgentEvent

NOISE_TRACE_INTERVAL_S = 1.0
"""Interval at which unanswered messages of strangers are traced: one is enough to see why, and a
scanner's thousands must not displace the calls."""


class SipStack:
    """Connects user agent and sockets. `on_event` receives the user agent's events, in order."""

    def __init__(self, settings: SipSettings, on_event: Callable[[UserAgentEvent], None]) -> None:
        self.trace = Trace(settings.trace_messages)
        self.hep = HepExport()
        self.bound: list[tuple[str, str, int]] = []
        """Transport, host and port of each listener."""
        self.settings = settings
        """Those in force."""
        self._on_event = on_event
        self.transports = Transports(self._received, self._failed)
        ways = self.transports
        self.agent = UserAgent(settings, self.address_of, ways.flow_to, ways.later_flows)
        self._local_addresses = LocalAddresses()
        self._timer = CoreTimer(self.agent.get_timer, self._due)
        self._working = False
        self._noise_traced_at = 0.0
        self._tls: ssl.SSLContext | None = None
        """TLS context of the listeners."""

    async def start(self) -> None:
        """Start listening. Raises OSError or SipError."""
        s = self.settings
        self._export(s.hep)
        if s.authorities is not None:
            self.transports.trust(trusting(s.authorities))
        if s.certificate is not None:
            self._tls = self._use_certificate(s)
        ports: dict[TransportName, int | None] = {
            "UDP": s.udp,
            "TCP": s.tcp,
            "TLS": s.tls,
            "WS": s.ws,
            "WSS": s.wss,
        }
        for transport, port in ports.items():
            if port is not None:
                secured = self._tls if transport in ("TLS", "WSS") else None
                for host in listening_hosts(s.host):
                    try:
                        bound = await self.transports.listen(transport, host, port, secured)
                    except OSError as error:
                        where = f"{transport.lower()}: {host}:{port}: {error.strerror}"
                        raise OSError(error.errno, where) from error
                    self.bound.append((transport, *bound))
                    port = bound[1]

    def use(self, settings: SipSettings) -> None:
        """Apply other trunks and rules, and reload the certificate. Listeners stay as they are.
        Raises SipError, and then nothing has changed."""
        if settings.certificate is not None:
            self._use_certificate(settings)  # an invalid pair does not reach the context in use
            if self._tls is not None:
                self._tls.load_cert_chain(str(settings.certificate), str(settings.key))
        self._export(settings.hep)
        before, now = self.settings.extensions, settings.extensions
        self.transports.close_desks(
            [number for number in before if withdrawn(before[number], now.get(number))]
        )
        self.settings = settings
        self.agent.use(settings, monotonic())

    def _use_certificate(self, settings: SipSettings) -> ssl.SSLContext:
        """Show the certificate to servers that ask for it. Returns a context for those who connect
        to us. Raises SipError."""
        context = tls_context(settings)
        assert settings.certificate is not None
        assert settings.key is not None
        self.transports.identify(settings.certificate, settings.key)
        return context

    async def close(self) -> None:
        self._timer.cancel()
        await self.transports.close()
        await self.hep.close()

    def _export(self, settings: HepSettings | None) -> None:
        self.hep.use(settings)
        self.trace.export = None if settings is None else self.hep.send_message

    def _received(self, data: bytes, flow: Flow) -> None:
        now, dropped = monotonic(), self.agent.access.dropped
        self.agent.receive(data, flow, now)
        if is_keep_alive(data):
            return
        noise = self.agent.access.dropped != dropped
        if not noise or now >= self._noise_traced_at + NOISE_TRACE_INTERVAL_S:
            self._record(data, flow, sent=False)
            self._noise_traced_at = now if noise else self._noise_traced_at
        self.process()

    def _record(self, data: bytes, flow: Flow, sent: bool) -> None:
        host, port = flow.local
        if not host or ip_address(host).is_unspecified:  # of a listener to all addresses
            flow = replace(flow, local=(self._local_addresses.towards(flow.remote[0]), port))
        self.trace.record(data, flow, sent, time.time())

    def _failed(self, flow: Flow) -> None:
        self.agent.flow_failed(flow, monotonic(), self.transports.fault_of(flow))
        self.process()

    def process(self) -> None:
        """Send messages, report events and set the next timer."""
        if self._working:  # called from an event handler: the outer loop continues
            return
        self._working = True
        try:
            while True:
                for data, flow in self.agent.messages_to_send():
                    self._record(data, flow, sent=True)
                    self.transports.send(data, flow)
                event = self.agent.next_event()
                if event is None:
                    break
                self._on_event(event)
        finally:
            self._working = False
        for flow in self.agent.upkeep.keep_alives_to_send(monotonic()):
            self.transports.send(KEEP_ALIVE, flow)
        self._timer.update()

    def session_changed(self, session: Session) -> None:
        """Process a session after a method of it was called."""
        self.agent.session_changed(session, monotonic())
        self.process()

    def _due(self) -> None:
        self.agent.handle_timer(monotonic())
        self.process()

    def address_of(self, flow: Flow) -> tuple[str, int]:
        """Return our host and port as a flow's far end reaches them, for Via, Contact and SDP."""
        public = self.settings.public_address
        host = public if (":" in public) == (":" in flow.remote[0]) else ""
        host = host or flow.local[0]
        if not host or ip_address(host).is_unspecified:
            host = self._local_addresses.towards(flow.remote[0])
        ports = {transport: port for transport, _, port in self.bound}
        port = ports.get(flow.transport) or flow.local[1]
        # For an outbound connection where we do not listen: the far end reuses it (RFC 5923).
        return host, port or (5061 if flow.secure else 5060)


def tls_context(settings: SipSettings) -> ssl.SSLContext:
    """Returns the context of the listeners. Raises SipError, which names the file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name, path in (("certificate", settings.certificate), ("key", settings.key)):
        assert path is not None
        try:
            path.read_bytes()
        except OSError as error:
            raise SipError(f"the {name} {path} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(str(settings.certificate), str(settings.key))
    except (OSError, ssl.SSLError) as error:
        both = f"{settings.certificate} and {settings.key}"
        raise SipError(f"{both} do not belong together, or are no PEM: {error}") from error
    return context
