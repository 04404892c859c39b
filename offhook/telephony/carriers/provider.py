"""What is known of one provider of calls, beside its stream and its REST API.

A subclass in the provider's folder has all of it; everything else in the program asks the object
and knows no provider by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from offhook.media.answer_status import Result
from offhook.telephony.carriers.auth.signatures import (
    TOKEN_PARAMETER,
    Nonces,
    Rejected,
    SignedRequest,
    is_loopback,
    url_token,
)
from offhook.telephony.carriers.rest.request import Api
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.stream import CarrierStream, Encoding, Format, Message
from offhook.telephony.carriers.webhook import CallFields, Reply, WebhookCall, read_fields

if TYPE_CHECKING:  # the configuration is read without what plays calls
    from offhook.telephony.carriers.leg_io import CarrierLeg

OpenLeg = Callable[[CarrierStream, Callable[[Message], None], str], "CarrierLeg"]
"""Opens the leg of a call from its stream, a send function, and the address it comes from."""


class Listener(Protocol):
    """A port of its own, to which a provider connects for each call."""

    async def start(self) -> tuple[str, int]:
        """Return host and port. Raises OSError."""

    async def close(self) -> None:
        """End all calls."""

    def use(self, settings: CarrierSettings) -> None:
        """Apply new settings to new connections."""


@dataclass(frozen=True)
class Provider(ABC):
    """One provider, with the settings of one carrier. Raises ValueError if these do not fit it.

    Those that ask by webhook (`asks`) define `fields`, `answer` and `refusal`; those that do not
    open their stream at once, over a WebSocket or, with a `listener`, over a port of their own.
    """

    settings: CarrierSettings

    name: ClassVar[str]
    """As in the configuration."""
    meanings: ClassVar[Mapping[str, str]] = {}
    """What `account`, `secret` and `api_key` are at this provider."""
    required: ClassVar[tuple[str, ...]] = ("secret",)
    """Of these, those without which nothing works."""
    required_to_dial: ClassVar[tuple[str, ...]] = ("public_url", "account", "number")
    """Settings without which it cannot be asked for calls."""
    formats: ClassVar[Mapping[Encoding, tuple[int, ...]]] = {}
    """Formats it can be asked for: encoding → rates in Hz, the default first. Empty: it announces
    its own."""
    api: ClassVar[type[Api] | None] = None
    """Its REST API; None: it cannot be asked to call, to end calls or to transfer them."""
    asks: ClassVar[bool] = False
    """Asks by webhook what shall be done with a call, and opens the stream named in the answer."""
    proves_stream: ClassVar[bool] = True
    """The WebSocket upgrade is verified by itself, besides any webhook before."""
    proves_calls: ClassVar[bool] = True
    """Each call is proved to be the provider's; if it is known by its address alone, only some of
    its calls may wait for their first sound."""
    signs_urls: ClassVar[bool] = True
    """Its requests are verified without a token in our URLs."""
    dials_to_stream: ClassVar[bool] = False
    """A call that we place connects to its stream at once, without asking."""
    renames_calls: ClassVar[bool] = False
    """The stream has another id for the call than the webhook."""
    continues: ClassVar[bool] = False
    """Documented to follow the rest of its instructions once our side closes the stream: it asks
    what to do next."""
    reports: ClassVar[bool] = False
    """Says how a transfer goes and has ended."""
    listens: ClassVar[str] = ""
    """What it speaks if it connects to a port of its own, `port` of the settings."""
    protocols: ClassVar[tuple[str, ...]] = ()
    """Subprotocols of its WebSocket."""
    headers: ClassVar[tuple[str, ...]] = ()
    """What the names of its own header fields begin with, in lower case."""
    fields: ClassVar[CallFields]
    """What its webhooks name the facts about a call."""

    def __post_init__(self) -> None:
        self._check_format()
        if not self.settings.insecure:
            self.check_secrets()

    def _check_format(self) -> None:
        settings = self.settings
        if not self.formats:
            if settings.encoding or settings.rate:
                raise settings.wrong(f"{self.name} sets the encoding: remove encoding and rate")
            return
        if settings.encoding and settings.encoding not in self.formats:
            known = ", ".join(self.formats)
            raise settings.wrong(f"encoding must be one of {known}, not {settings.encoding!r}")
        rates = self.formats[self.format.encoding]
        if settings.rate and settings.rate not in rates:
            known = ", ".join(map(str, sorted(rates)))
            raise settings.wrong(f"rate must be one of {known} Hz, not {settings.rate}")

    def check_secrets(self) -> None:
        """Raise ValueError if a secret is missing or malformed."""
        if "secret" in self.required and not self.settings.secret:
            raise self.settings.wrong("secret is required: it proves who calls")
        if "api_key" in self.required and not self.settings.api_key:
            raise self.settings.wrong("api_key is required along with secret")

    @property
    def format(self) -> Format:
        """The format that a provider with `formats` is asked to send and accept."""
        given = self.settings.encoding
        encoding = given if given != "" else next(iter(self.formats))
        return Format(encoding, self.settings.rate or self.formats[encoding][0])

    # --- who asks ---

    @property
    def urls_query(self) -> str:
        """The query of our URLs, which has the token of a provider that can neither sign nor send a
        password."""
        return "" if self.signs_urls else f"?{TOKEN_PARAMETER}={url_token(self.settings)}"

    def verify(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """Raise Rejected unless the provider sent the request, and Replayed if it did so before.
        `now` is Unix time in seconds; `seen` belongs to this carrier."""
        if not self.settings.insecure:
            self.authenticate(request, now, seen)
        # With an empty secret anybody could sign, so the signature is not checked at all.
        elif not is_loopback(request.peer):
            raise Rejected("insecure accepts requests from this machine only")

    @abstractmethod
    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        """Do what `verify` does, by the provider's secrets."""

    # --- streams ---

    @abstractmethod
    def stream(self, query: Mapping[str, str]) -> CarrierStream:
        """Return the protocol of a new stream, whose URL has this query."""

    def listener(self, host: str, open_leg: OpenLeg) -> Listener | None:
        """Return what accepts the provider's connections at an address of ours, if `listens`."""
        return None

    # --- webhooks ---

    def parse_webhook(
        self, content_type: str, body: bytes, query: Mapping[str, str]
    ) -> WebhookCall:
        """Parse a webhook. Raises ValueError if it names no call or is malformed."""
        return self.fields.read(read_fields(content_type, body, query))

    def answer(self, stream_url: str, call: WebhookCall, then_url: str = "") -> Reply:
        """Return the answer that connects a call to a stream. Once our side closes the stream, a
        provider that `continues` asks `then_url` what to do next."""
        raise NotImplementedError

    def refusal(self, reason: Literal["busy", "rejected"] = "busy") -> Reply:
        """Return the answer that rejects a call."""
        raise NotImplementedError

    def retry(self, url: str) -> Reply:
        """Return the answer that has a provider that `continues` ask `url` a moment later."""
        raise NotImplementedError

    def hang_up(self) -> Reply:
        """Return the answer that ends a call that comes back."""
        return self.refusal()

    def answered_by(self, report: WebhookCall) -> Result | None:
        """Return who has answered a call that we placed; None if the webhook does not say."""
        return None

    # --- transfers ---

    def transfer_answer(self, query: Mapping[str, str], outcome_url: str) -> Reply | None:
        """Return how a transfer is carried out, if a webhook with this query asks for that."""
        return None

    def dial_status(self, report: WebhookCall) -> str:
        """Return how the call to the target of a transfer goes, in the words of
        `call_io.STATUSES`: "busy", "completed"; "" if the webhook does not say."""
        return report.event

    def caller_status(self, report: WebhookCall) -> str:
        """Return the status of the call that was transferred, likewise."""
        return ""

    def rest(self) -> Api | None:
        """Return the REST API with the settings' credentials. Raises RestError."""
        return self.api(self.settings) if self.api is not None else None
