"""The phones of our extensions, a part of the user agent: where they are, and what they show."""

import secrets
from collections.abc import Callable, Mapping

from offhook.telephony.sip.extensions.message_waiting import Counts, MessageWaiting
from offhook.telephony.sip.extensions.registrar import Bindings, Registrar
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.transactions.message_sender import MessageSender
from offhook.telephony.sip.transactions.transaction import ServerTransaction
from offhook.telephony.sip.trunks.trunks import SipSettings


class Phones:
    """Answers the REGISTERs and SUBSCRIBEs of phones that have proved whose they are."""

    def __init__(
        self,
        settings: SipSettings,
        sender: MessageSender,
        contact: Callable[[Flow], Uri],
        changed: Callable[[str], None],
    ) -> None:
        """`contact` returns our Contact towards the far end of a flow. `changed` is called with an
        extension whose phones have come or gone."""
        self.registrar = Registrar(settings.extensions, changed)
        self.message_waiting = MessageWaiting(self.registrar.bindings, sender.request, contact)
        self._respond, self._respond_at_once = sender.respond, sender.respond_stateless

    def register(self, request: Request, number: str, flow: Flow, now: float) -> None:
        """Respond to a REGISTER, without a transaction like to all that starts nothing."""
        before = set(self.registrar.bindings(number))
        answer = self.registrar.receive(request, number, flow, now)
        self._respond_at_once(request, flow, answer.status, "", answer.headers)
        for binding in set(self.registrar.bindings(number)) - before:
            self.message_waiting.registered(number, binding, now)

    def subscribe(
        self, transaction: ServerTransaction, number: str, flow: Flow, now: float
    ) -> None:
        """Respond to a SUBSCRIBE."""
        request = transaction.request
        answer, tag = self.message_waiting.receive(request, number, flow, now)
        tag = tag or secrets.token_hex(8)
        response = respond(request, answer.status, to_tag=tag, headers=answer.headers)
        self._respond(transaction, response, now)
        if answer.status == 200:
            self.message_waiting.confirm(request.call_id, now)

    def show(self, messages: Mapping[str, Counts], now: float) -> None:
        """Have phones show how many messages their extensions have, new and heard ones."""
        self.message_waiting.use(messages, now)

    def restore(self, number: str, phones: Bindings, now: float) -> None:
        """Reach phones of before a restart."""
        for key, binding in phones:
            if self.registrar.restore(number, key, binding):
                self.message_waiting.registered(number, binding, now)

    def use(self, settings: SipSettings) -> None:
        """Apply other extensions."""
        self.registrar.use(settings.extensions)

    def flow_failed(self, flow: Flow) -> None:
        self.registrar.flow_failed(flow)
        self.message_waiting.flow_failed(flow)

    def refused(self, request_method: str, call_id: str) -> None:
        """A request of ours was refused, or not answered."""
        if request_method == "NOTIFY":
            self.message_waiting.refused(call_id)

    def get_timer(self) -> float | None:
        timers = self.registrar.get_timer(), self.message_waiting.get_timer()
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self.registrar.handle_timer(now)
        self.message_waiting.handle_timer(now)
