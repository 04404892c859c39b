"""Our addresses, as far ends reach us."""

from collections.abc import Callable

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog_requests import ALLOWED
from offhook.telephony.sip.trunks.registrations import Registrations
from offhook.telephony.sip.trunks.trunks import Trunk


class OwnAddresses:
    """Our address towards each far end: behind a NAT, the one that the trunk's registrar sees."""

    def __init__(
        self, address_of: Callable[[Flow], tuple[str, int]], registrations: Registrations
    ) -> None:
        """`address_of` returns our host and port as the far end of a flow reaches them."""
        self._address_of = address_of
        self._registrations = registrations

    def address(self, flow: Flow, trunk: Trunk | None) -> tuple[str, int]:
        """Return our address, as the far end of the flow reaches us."""
        host, port = self._address_of(flow)
        return self._registrations.public_address_of(trunk, host) or (host, port)

    def contact(self, flow: Flow, trunk: Trunk | None) -> Uri:
        """Return our Contact: our address, or the name by which the trunk knows us."""
        if trunk is not None and trunk.public_name:
            host, port = trunk.public_name, self._address_of(flow)[1]
        else:
            host, port = self.address(flow, trunk)
        user = trunk.username if trunk is not None and trunk.username else None
        uri = Uri("sip", user=user, host=host, port=port)
        if flow.transport == "UDP":
            return uri
        return uri.with_parameter("transport", flow.transport.lower())

    def introduction(self, flow: Flow, trunk: Trunk) -> list[tuple[str, str]]:
        """Return the headers of our OPTIONS to a trunk: where we are reached, and by which
        methods."""
        return [("Contact", f"<{self.contact(flow, trunk)}>"), ("Allow", ", ".join(ALLOWED))]
