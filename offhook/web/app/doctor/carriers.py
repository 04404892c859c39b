"""Carrier checks of `offhook doctor`: incoming and outgoing calls, and their URLs."""

from collections.abc import Iterator

from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.app.doctor.finding import Finding


def examine_carriers(carriers: tuple[CarrierSettings, ...], host: str) -> Iterator[Finding]:
    """Yields the findings; `host` is the address that the server listens on."""
    for provider in map(provider_of, carriers):
        settings = provider.settings
        subject = f"carrier {settings.name}"
        if settings.insecure:
            yield Finding(subject, "note", "insecure: nothing is verified; for tests only")
        elif provider.listens:
            where = ", ".join(settings.addresses)
            yield Finding(
                subject, "ok", f"{provider.listens} at {host}:{settings.port}, from {where}"
            )
        else:
            yield Finding(subject, "ok", _url(provider))
        if provider.api is not None:
            yield _calls_out(subject, provider)


def _url(provider: Provider) -> str:
    settings = provider.settings
    base = settings.public_url.rstrip("/") or "https://YOUR-HOST"
    if provider.asks:
        url = f"{base}/carriers/{settings.name}/voice"
    else:
        url = f"{base.replace('http', 'ws', 1)}/carriers/{settings.name}/stream"
    return url + provider.urls_query


def _calls_out(subject: str, provider: Provider) -> Finding:
    settings = provider.settings
    missing = [name for name in provider.required_to_dial if not getattr(settings, name)]
    if missing:
        return Finding(subject, "note", f"calls nobody: it has no {', no '.join(missing)}")
    return Finding(subject, "ok", f"calls others, as {settings.number}")
