"""What all sections of the configuration have in common."""

import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from offhook.web.http.webhook_signature import signing_key

T = TypeVar("T", bound=Collection[str])

Secret = Annotated[str, Field(repr=False)]
"""A string that is never logged."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _signing(secrets: tuple[str, ...]) -> tuple[str, ...]:
    for secret in secrets:
        signing_key(secret)
    return secrets


Secrets = Annotated[tuple[str, ...], Field(repr=False, max_length=4), AfterValidator(_signing)]
"""Secrets that sign webhooks."""


def or_plugin(is_known: Callable[[str], bool]) -> WrapValidator:
    """Validates a name: one of ours, which are listed, or one that another package has."""

    def validate(name: Any, ours: ValidatorFunctionWrapHandler) -> str:
        known = isinstance(name, str) and is_known(name)
        return str(name) if known else str(ours(name))

    return WrapValidator(validate)


def each(form: str, what: str) -> AfterValidator:
    """Validates texts that match a regular expression; `what` says of another one what it is."""

    def validate(texts: T) -> T:
        for text in texts:
            if not re.fullmatch(form, text):
                raise ValueError(f"{text!r} is {what}")
        return texts

    return AfterValidator(validate)


def headers_besides(own: Collection[str]) -> AfterValidator:
    """Validates headers of requests, which have others of their own, named in lower case."""

    def validate(headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() in own:
                raise ValueError(f"{name!r} is no header that can be set")
            if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
                raise ValueError(f"the value of {name} is empty or not of printable ASCII")
        return headers

    return AfterValidator(validate)
