"""Who is called: a number, an id that is called once, and variables for the agent."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.week import check_zone

MAX_RECIPIENTS = 100_000
"""Maximum recipients of one request; more are refused with 400."""
MAX_ID = 128
"""Maximum characters of a recipient's id; a longer one is refused with 400."""
MAX_NUMBER = 256
"""Maximum characters of a number or SIP URI; a longer one is refused with 400."""
MAX_VARIABLES = 50
"""Maximum variables of a recipient; more are refused with 400."""
MAX_VARIABLE_CHARS = 2000
"""Maximum characters of a variable's name with its value; more are refused with 400."""
FEWEST_DIGITS, MOST_DIGITS = 2, 20
"""Digits of a number: those of extensions, and of international numbers with some more, as of
E.164, which has 15."""

_NUMBER = re.compile(r"\+?[0-9*#][0-9 ./()*#-]*")
_URI = re.compile(r"(?i)sips?:[!-~]+@[!-~]+")
_MANGLED = re.compile(r"(?i)[0-9][.,]?[0-9]*e\+?[0-9]+")


@dataclass(frozen=True)
class Recipient:
    """Somebody to be called."""

    number: str
    id: str
    """The same id is called once in a campaign, however often it is sent."""
    key: str
    """See `number_key`."""
    time_zone: str = ""
    """"" for that of the campaign."""
    variables: dict[str, Any] = field(default_factory=dict)


def recipient(
    number: object, id: object = "", time_zone: object = "", variables: object = None
) -> Recipient:
    """Checks a recipient; without an id, the number is it. Raises CampaignError, which begins with
    the name of the field."""
    number = check_number(number)
    if not isinstance(id, str) or len(id) > MAX_ID or not id.isprintable():
        raise CampaignError(f"id: a text of up to {MAX_ID} printable characters is wanted")
    if not isinstance(time_zone, str):
        raise CampaignError("time_zone: a name such as Europe/Berlin is wanted")
    if time_zone:
        try:
            check_zone(time_zone)
        except ValueError as error:
            raise CampaignError(f"time_zone: {error}") from error
    variables = {} if variables is None else variables
    if not isinstance(variables, dict) or len(variables) > MAX_VARIABLES:
        raise CampaignError(f"variables: an object of up to {MAX_VARIABLES} is wanted")
    for name, value in variables.items():
        if len(name) + len(str(value)) > MAX_VARIABLE_CHARS:
            raise CampaignError(f"{name[:40]}: is over {MAX_VARIABLE_CHARS} characters")
    key = number_key(number)
    return Recipient(number, id or key, key, time_zone, variables)


def check_number(number: object) -> str:
    """Returns a number as it is dialled. Raises CampaignError."""
    if not isinstance(number, str):
        raise CampaignError('number: a text is wanted, as "+4930123456"')
    number = number.strip().removeprefix("'")  # which spreadsheets show a text by
    if _URI.fullmatch(number) and len(number) <= MAX_NUMBER:
        return number
    if _MANGLED.fullmatch(number):
        raise CampaignError(
            f"number: a spreadsheet has made {number!r} of it: format the column as text"
        )
    digits = re.sub(r"[^0-9]", "", number)
    is_number = _NUMBER.fullmatch(number.removeprefix("tel:"))
    if not is_number or not FEWEST_DIGITS <= len(digits) <= MOST_DIGITS:
        raise CampaignError(
            f"number: {number[:40]!r} is no number; one is +4930123456, or sip:ann@example.org"
        )
    return number.removeprefix("tel:")


def number_key(number: str) -> str:
    """Returns the same text for all ways of writing a number: with 00 or +, and with spaces.

    >>> number_key("0049 (30) 123-456") == number_key("+4930123456")
    True
    """
    if number.lower().startswith(("sip:", "sips:")):
        return number.partition(":")[2].lower()
    kept = re.sub(r"[^0-9*#]", "", number)
    is_international = number.startswith("+") or kept.startswith("00")
    return f"+{kept.lstrip('0')}" if is_international else kept


def recipients_of(listed: Any) -> list[Recipient]:
    """Returns those of a JSON list. Raises CampaignError, which names the place."""
    if not isinstance(listed, list) or not listed:
        raise CampaignError('recipients: a list is wanted, as [{"number": "+4930123456"}]')
    check_count(listed)
    found = []
    for place, fields in enumerate(listed):
        if not isinstance(fields, dict):
            raise CampaignError(f"recipients.{place}: an object with a number is wanted")
        if unknown := fields.keys() - {"number", "id", "time_zone", "variables"}:
            names = ", ".join(sorted(unknown))[:80]
            raise CampaignError(
                f"recipients.{place}: {names}: is unknown; variables are in an object variables"
            )
        try:
            found.append(recipient(**{"number": None, **fields}))
        except CampaignError as error:
            raise CampaignError(f"recipients.{place}.{error}") from error
    return found


def check_count(listed: Sequence[Any]) -> None:
    """Raises CampaignError."""
    if len(listed) > MAX_RECIPIENTS:
        raise CampaignError(
            f"recipients: {len(listed)} are more than {MAX_RECIPIENTS}; append the rest later"
        )
