"""The REST API of each provider, and which providers have none."""

from collections.abc import Mapping

from offhook.telephony.carriers.rest.exotel import ExotelApi
from offhook.telephony.carriers.rest.plivo import PlivoApi
from offhook.telephony.carriers.rest.request import Api, RestError
from offhook.telephony.carriers.rest.telnyx import TelnyxApi
from offhook.telephony.carriers.rest.twilio import TwilioApi
from offhook.telephony.carriers.rest.vonage import VonageApi
from offhook.telephony.carriers.settings import CarrierSettings, Provider

APIS: Mapping[Provider, type[Api]] = {
    "twilio": TwilioApi,
    "telnyx": TelnyxApi,
    "plivo": PlivoApi,
    "vonage": VonageApi,
    "exotel": ExotelApi,
}

_WITHOUT: Mapping[Provider, str] = {
    "genesys": "Genesys AudioHook cannot be dialled by REST: its calls come from Genesys Cloud, "
    "which ends and transfers them by its flows",
    "audiosocket": "Asterisk cannot be dialled by REST here: originate the call in Asterisk "
    "(dialplan, AMI or ARI) and let it run AudioSocket",
    "chan_websocket": "Asterisk cannot be dialled by REST here: originate the call in Asterisk "
    "(dialplan, AMI or ARI) to WebSocket/…",
}


def api(settings: CarrierSettings) -> Api:
    """Return the REST API of a carrier. Raises RestError if its provider has none."""
    if settings.provider in _WITHOUT:
        raise RestError(0, _WITHOUT[settings.provider])
    return APIS[settings.provider](settings)
