"""What all sections of the configuration have in common."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator

Secret = Annotated[str, Field(repr=False)]
"""A string that is never logged."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def or_plugin(is_known: Callable[[str], bool]) -> WrapValidator:
    """Validates a name: one of ours, which are listed, or one that another package has."""

    def validate(name: Any, ours: ValidatorFunctionWrapHandler) -> str:
        known = isinstance(name, str) and is_known(name)
        return str(name) if known else str(ours(name))

    return WrapValidator(validate)
