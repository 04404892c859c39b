"""What a provider's webhook says about a call, and what it is answered.

A webhook describes a call in a form, in JSON or in its query. The answer is the provider's own
document: XML or JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from offhook.telephony.carriers.auth.signatures import MAX_BODY_BYTES, MAX_FIELDS, TOKEN_PARAMETER
from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    read_object,
    text_of,
    texts_of,
)

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a webhook, which may be sent more than once."""

    content_type: str = "text/plain"
    text: str = ""
    status: int = 200


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """What a webhook says about a call."""

    call_id: str
    """The provider's id of the call."""
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """All other fields that are text or numbers, limited like custom parameters."""
    event: str = ""
    """The provider's name for what happened: "ringing", "completed"; "" if it does not say."""


@dataclass(frozen=True, slots=True)
class CallFields:
    """What a provider's webhooks name the facts about a call; the first name present counts."""

    call_id: tuple[str, ...]
    caller: tuple[str, ...] = ("From",)
    called: tuple[str, ...] = ("To",)
    event: tuple[str, ...] = ("CallStatus",)

    def read(self, fields: Json) -> WebhookCall:
        """Return what the fields say. Raises ValueError if they name no call."""
        rest = dict(fields)
        found = []
        for names in (self.call_id, self.caller, self.called, self.event):
            name = next((name for name in names if rest.get(name)), "")
            found.append(text_of(rest.pop(name, ""), MAX_ID_CHARS))
        call_id, caller, called, event = found
        if not call_id:
            raise ValueError("the webhook names no call")
        rest.pop(TOKEN_PARAMETER, None)  # a credential: not for agents and records
        return WebhookCall(call_id, caller, called, texts_of(rest), event)


def read_fields(content_type: str, body: bytes, query: Mapping[str, str]) -> Json:
    """Return a webhook's fields; those of the body take precedence over the query. Raises
    ValueError if it is malformed."""
    if len(query) > MAX_FIELDS:
        raise ValueError(f"more than {MAX_FIELDS} fields")
    return dict(query) | _body_fields(content_type, body)


def _body_fields(content_type: str, body: bytes) -> Json:
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"body of {len(body)} bytes is too large")
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return {}
    if kind == FORM:
        text = body.decode(errors="replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    if kind != JSON:
        raise ValueError("the body is neither a form nor JSON")
    fields = read_object(body, MAX_BODY_BYTES)
    if fields is None:
        raise ValueError("the body is not a JSON object")
    return fields
