"""What all sections of the configuration have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Secret = Annotated[str, Field(repr=False)]
"""A string that is never logged."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
