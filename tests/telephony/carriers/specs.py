"""The providers, by what they can, and what belongs to one of a carrier's settings."""

from offhook.telephony.carriers.providers import provider_called, provider_names
from offhook.telephony.carriers.rest.request import Api
from offhook.telephony.carriers.settings import CarrierSettings

PROVIDERS = [provider_called(name) for name in provider_names()]
ASKING = [kind.name for kind in PROVIDERS if kind.asks]
SIGNING = [kind.name for kind in PROVIDERS if kind.signs_urls and kind.proves_calls]
WITH_REST = [kind.name for kind in PROVIDERS if kind.api is not None]


def api(settings: CarrierSettings) -> Api:
    kind = provider_called(settings.provider).api
    assert kind is not None
    return kind(settings)
