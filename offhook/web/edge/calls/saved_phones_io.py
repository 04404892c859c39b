"""Saves where the phones of extensions are, and has those of before a restart ring at once."""

from collections.abc import Sequence
from time import monotonic, time

from loguru import logger

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.extensions.registrar import Bindings
from offhook.telephony.sip.extensions.saved_phones import pack, unpack
from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.records.people.phones import Registrations

Restored = dict[str, Bindings]
"""Phones of before, by extension."""


class PhonesKeeper:
    """The phones of one endpoint, as they were saved last."""

    def __init__(self, sip: SipEndpoint, registrations: Registrations, server: str) -> None:
        self._sip, self._registrations, self._server = sip, registrations, server
        self._now: Restored = {}
        """As they are now."""
        self._saved: Restored | None = None
        """As they are in the store; None before that was read."""

    def start(self, queues: StoreQueues) -> None:
        queues.serve("registrations", self._save_changed, self._restore, self._look)

    def _look(self) -> None:
        self._now = self._sip.user_agent.phones.registrar.by_datagram()

    def _save_changed(self, now: float) -> Sequence[Restored]:
        """Returns what was saved before the start, once. Blocks. Raises StoreError."""
        if self._saved is None:
            restored = self._read(now)
            self._saved = restored
            return (restored,)
        extensions, epoch = self._sip.stack.settings.extensions, time() - monotonic()
        changed = {
            number: pack(number, extensions[number].password, phones, epoch)
            for number, phones in self._now.items()
            if self._saved.get(number) != phones and number in extensions
        }
        changed |= dict.fromkeys(self._saved.keys() - self._now.keys())
        if changed:
            self._registrations.save(self._server, changed)
            self._saved = self._now
        return ()

    def _read(self, now: float) -> Restored:
        extensions, monotonic_now = self._sip.stack.settings.extensions, monotonic()
        listening = [(host, port) for way, host, port in self._sip.bound if way == "UDP"]
        epoch, found = now - monotonic_now, {}
        for number, text in self._registrations.of(self._server, now).items():
            known = extensions.get(number)
            password = known.password if known is not None else ""
            try:
                found[number] = unpack(number, password, text, listening, epoch, monotonic_now)
            except ValueError as error:
                reason = str(error).split("\n")[0]
                logger.warning("extension {}: its phones are forgotten: {}", number, reason)
                found[number] = ()
        return found

    async def _restore(self, phones: Restored) -> None:
        stack = self._sip.stack
        for number, each in phones.items():
            stack.agent.phones.restore(number, each, monotonic())
        stack.process()
