"""The providers by name: ours, and those of other packages (entry points `offhook.carriers`).

Names are known without importing anything; a provider is imported when a carrier is configured for
it.
"""

from importlib.metadata import EntryPoint, entry_points

from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.settings import CarrierSettings

GROUP = "offhook.carriers"

_HERE = "offhook.telephony.carriers"
OURS = {
    "twilio": f"{_HERE}.twilio.provider:Twilio",
    "telnyx": f"{_HERE}.telnyx.provider:Telnyx",
    "plivo": f"{_HERE}.plivo.provider:Plivo",
    "vonage": f"{_HERE}.vonage.provider:Vonage",
    "exotel": f"{_HERE}.exotel.provider:Exotel",
    "genesys": f"{_HERE}.genesys.provider:Genesys",
    "audiosocket": f"{_HERE}.audiosocket.provider:AudioSocket",
    "chan_websocket": f"{_HERE}.chan_websocket.provider:ChanWebSocket",
}
"""The one table of the providers here: where each is by its name."""


def provider_names() -> list[str]:
    """Return the names that `provider` of the settings may have, ours first."""
    return [*OURS, *sorted(entry_points(group=GROUP).names - OURS.keys())]


def provider_called(name: str) -> type[Provider]:
    """Import a provider. Raises ValueError if there is none of this name, or it cannot be
    imported."""
    if name in OURS:
        entry = EntryPoint(name, OURS[name], GROUP)
    elif name in (known := entry_points(group=GROUP)).names:
        entry = known[name]
    else:
        raise ValueError(f"unknown provider {name!r}: use one of {', '.join(provider_names())}")
    try:
        found: type[Provider] = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"provider {name!r} cannot be loaded: {error}") from error
    return found


def provider_of(settings: CarrierSettings) -> Provider:
    """Return the provider of a carrier. Raises ValueError if the settings do not fit it."""
    return provider_called(settings.provider)(settings)


def checked(settings: CarrierSettings) -> CarrierSettings:
    """Return the settings. Raises ValueError if they do not fit their provider."""
    provider_of(settings)
    return settings
