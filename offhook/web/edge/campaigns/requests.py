"""The bodies of requests about campaigns."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ConfigDict, Field, ValidationError

from offhook.media.untrusted_json import read_json
from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.plan import CampaignPlan
from offhook.web.campaigns.recipients import Recipient, recipients_of
from offhook.web.campaigns.recipients_csv import recipients_in
from offhook.web.campaigns.states import ACTIONS, Action
from offhook.web.edge.placing.requests import CallOptions, check_options, dial_fault

CSV = "text/csv"
LISTS = ("windows", "holidays")
OBJECTS = ("retries", "headers")
MAX_NUMBERS = 10_000
"""Maximum numbers of one request to the do-not-call list; more are refused with 400."""

MAX_REASON = 200
"""Maximum characters of why numbers are not to be called; more are refused with 400."""


class CampaignRequest(CampaignPlan, CallOptions):
    """The body of `POST /campaigns`, but for the recipients."""

    model_config = ConfigDict(extra="forbid", strict=False)

    id: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    """Id of the campaign; by default a new one."""
    paused: bool = False
    """Whether nobody is called before the campaign is resumed."""

    def settings(self) -> dict[str, Any]:
        """Returns what is kept of it: what differs from the defaults."""
        return self.model_dump(mode="json", exclude={"id", "paused"}, exclude_defaults=True)


def parse_campaign(
    content_type: str, body: bytes, query: Mapping[str, Sequence[str]]
) -> tuple[CampaignRequest, list[Recipient]]:
    """Parses a campaign with its recipients: JSON, or CSV with the settings in the query. Raises
    CampaignError and DialRequestError."""
    if content_type == CSV:
        fields = {name: _from_query(name, values) for name, values in query.items()}
        return _checked(fields), recipients_in(body)
    fields = _object(body)
    recipients = recipients_of(fields.pop("recipients", None))
    return _checked(fields), recipients


def _from_query(name: str, values: Sequence[str]) -> Any:
    if name in LISTS:
        return list(values)
    if len(values) > 1:
        raise CampaignError(f"{name}: is there twice")
    if name in OBJECTS:
        try:
            return read_json(values[0])
        except ValueError as error:
            raise CampaignError(f"{name}: an object of JSON is wanted") from error
    return values[0]


def _checked(fields: dict[str, Any]) -> CampaignRequest:
    try:
        asked = CampaignRequest.model_validate(fields)
    except ValidationError as error:
        raise dial_fault(error) from error
    check_options(asked)
    return asked


def parse_recipients(content_type: str, body: bytes) -> list[Recipient]:
    """Parses recipients to be appended. Raises CampaignError."""
    if content_type == CSV:
        return recipients_in(body)
    return recipients_of(_object(body).get("recipients"))


def parse_action(body: bytes) -> Action:
    """Raises CampaignError."""
    fields = _object(body)
    action = fields.get("action")
    if len(fields) != 1 or action not in ACTIONS:
        wanted = " or ".join(f'{{"action": "{one}"}}' for one in ACTIONS)
        raise CampaignError(f"the body is {wanted}")
    return cast(Action, action)


def parse_numbers(body: bytes) -> tuple[list[str], str]:
    """Parses numbers that are not to be called, and why. Raises CampaignError."""
    fields = _object(body)
    numbers = fields.pop("numbers", None)
    if not isinstance(numbers, list) or not numbers:
        raise CampaignError('the body is {"numbers": ["+49…"], "reason": "…"}')
    if len(numbers) > MAX_NUMBERS:
        raise CampaignError(f"numbers: {len(numbers)} are more than {MAX_NUMBERS}")
    return numbers, _reason(fields)


def parse_reason(body: bytes) -> str:
    """Parses why a number is not to be called. Raises CampaignError."""
    return _reason(_object(body))


def _reason(fields: Mapping[str, Any]) -> str:
    reason = fields.get("reason", "")
    if unknown := ", ".join(fields.keys() - {"reason"}):
        raise CampaignError(f"{unknown[:80]}: is unknown; there is a reason")
    if not isinstance(reason, str) or len(reason) > MAX_REASON or not reason.isprintable():
        raise CampaignError(f"reason: up to {MAX_REASON} printable characters are wanted")
    return reason


def _object(body: bytes) -> dict[str, Any]:
    """Raises CampaignError."""
    try:
        fields = read_json(body)
    except ValueError as error:
        raise CampaignError(f"the body is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CampaignError("the body is an object of JSON")
    return fields
