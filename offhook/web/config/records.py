"""The configuration section [records]: the calls that are kept."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from offhook.web.config.section import Secrets, Section
from offhook.web.records.webhooks import EventType, Receiver

USUAL_EVENTS: tuple[EventType, ...] = ("call.ended",)


class RecordsWebhook(Section):
    """A program that is told of calls."""

    url: str = Field(
        pattern=r"^https?://[^/?#@\s]+(/[^#\s]*)?$", examples=["https://crm.example/hook"]
    )
    secrets: Annotated[Secrets, Field(min_length=1)]
    """Secrets that sign what is sent, usually one; a second one while the receiver changes over.
    `whsec_` and base64, or any text."""
    events: tuple[EventType, ...] = USUAL_EVENTS
    """What it is told of."""
    tenant: str = ""
    """Name of the [tenants] table of whose calls, trunks and campaigns it is told; empty: of
    all."""


Days = Annotated[int, Field(ge=0, le=36_500)]


class Records(Section):
    url: str = Field("sqlite:///calls.db", repr=False)
    """Where calls are kept: sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE, which
    several servers can share. Empty: nowhere."""
    words: bool = True
    """Whether what callers and agents say is kept too, with what tools are told and answer. Keys
    that callers press never are."""
    days: Days = 365
    """Days for which a call can be found; 0: for ever."""
    words_days: Days = 90
    """Days after which what was said in a call, and who called whom, is deleted."""
    recordings_days: Days = 90
    """Days after which its recording is deleted."""
    spool: Path = Path("calls-spool")
    """Folder for what waits while the database cannot be reached."""
    webhooks: tuple[RecordsWebhook, ...] = ()
    """Programs that are told of calls, `[[records.webhooks]]`."""

    @field_validator("url")
    @classmethod
    def _names_a_database(cls, url: str) -> str:
        if url and "://" not in url:
            raise ValueError("a URL as sqlite:///calls.db, or empty for none")
        if url.startswith("sqlite:") and not re.fullmatch(r"sqlite:///[^?:]+", url):
            raise ValueError("names no file: sqlite:///calls.db, or sqlite:////a/whole/path.db")
        return url

    @model_validator(mode="after")
    def _webhooks_wait_in_the_store(self) -> "Records":
        if self.webhooks and not self.url:
            raise ValueError("webhooks: they wait in the database, so url must name one")
        return self

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        return tuple(
            Receiver(w.url, w.secrets, frozenset(w.events), tenant=w.tenant) for w in self.webhooks
        )

    @property
    def keep_s(self) -> tuple[float, float, float]:
        """Returns for how many seconds calls, words and recordings are kept."""
        day = 86_400.0
        return self.days * day, self.words_days * day, self.recordings_days * day
