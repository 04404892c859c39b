"""Carrier checks of `offhook doctor`: incoming and outgoing calls, and their URLs."""

from collections.abc import Iterator

from offhook.telephony.carriers.auth.signatures import url_token
from offhook.telephony.carriers.rest.providers import APIS
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.doctor.finding import Finding


def examine_carriers(carriers: tuple[CarrierSettings, ...], host: str) -> Iterator[Finding]:
    """Yields the findings; `host` is the address that the server listens on."""
    for settings in carriers:
        subject = f"carrier {settings.name}"
        if settings.insecure:
            yield Finding(subject, "note", "insecure: nothing is verified; for tests only")
        elif settings.provider == "audiosocket":
            where = ", ".join(settings.addresses)
            yield Finding(subject, "ok", f"AudioSocket at {host}:{settings.port}, from {where}")
        else:
            yield Finding(subject, "ok", _url(settings))
        if settings.provider in APIS:
            yield _calls_out(subject, settings)


def _url(settings: CarrierSettings) -> str:
    base = settings.public_url.rstrip("/") or "https://YOUR-HOST"
    if settings.provider in APIS:
        url = f"{base}/carriers/{settings.name}/voice"
    else:
        url = f"{base.replace('http', 'ws', 1)}/carriers/{settings.name}/stream"
    if settings.provider == "exotel":
        return f"{url}?token={url_token(settings)}"
    return url


def _calls_out(subject: str, settings: CarrierSettings) -> Finding:
    missing = [name for name in ("public_url", "account", "number") if not getattr(settings, name)]
    if settings.provider in ("telnyx", "vonage", "exotel") and not settings.api_key:
        missing.append("api_key")
    if missing:
        return Finding(subject, "note", f"calls nobody: it has no {', no '.join(missing)}")
    return Finding(subject, "ok", f"calls others, as {settings.number}")
