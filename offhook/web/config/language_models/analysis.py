"""`[agents.X.analysis]`: what a language model says of an agent's calls once they are over."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from offhook.web.config.collect import MAX_FIELDS, Detail, DetailName
from offhook.web.config.language_models.chat_model import ChatModel

MAX_CRITERIA = 20
"""Maximum criteria of an analysis."""
MAX_CRITERION_CHARS = 500
"""Maximum characters of a criterion."""
ONLY = "success"
"""Name of a criterion that has none."""
_OF_A_SERVER = ("base_url", "api_key", "headers", "query", "extra_body")

Criterion = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CRITERION_CHARS)]


class Analysis(ChatModel):
    """Its model is that of its agent, where it names none."""

    model: str = ""
    """Name of the language model. Empty: the agent's own, if that is of the kind "openai"; the keys
    of it that are left out here are the agent's too, but for `max_tokens`."""
    base_url: str = Field("", examples=["https://api.openai.com/v1"])
    """URL of a server with OpenAI's chat API. Empty: the agent's; another one gets neither its
    `api_key` nor its `headers`, `query` and `extra_body`."""
    max_tokens: int = Field(4000, ge=1)
    """Maximum tokens of an answer, with what the model thinks before it."""
    summary: bool = True
    """Whether the call is summed up in some sentences."""
    success: dict[DetailName, Criterion] = Field({}, max_length=MAX_CRITERIA)
    """What makes a call a success: a sentence, or several by names, that the model finds true or
    not: `"The caller has an appointment."`, or `{booked = "…", polite = "…"}`. With several, all of
    them."""
    extract: dict[DetailName, Detail] = Field({}, max_length=MAX_FIELDS)
    """What is to be found in the conversation, as `collect` has it: a `type`, what it is (`ask`),
    and `choices`."""

    @field_validator("success", mode="before")
    @classmethod
    def _may_be_one(cls, success: Any) -> Any:
        return {ONLY: success} if isinstance(success, str) else success

    @model_validator(mode="after")
    def _is_about_something(self) -> Self:
        if not (self.summary or self.success or self.extract):
            raise ValueError("asks for nothing: set success or extract, or summary = true")
        for name, detail in self.extract.items():
            if {"repeat", "required"} & detail.model_fields_set:
                raise ValueError(
                    f"extract.{name}: repeat and required are for collect, since nobody is asked "
                    "after the call"
                )
        texts = {f"success.{name}": text for name, text in self.success.items()}
        texts |= {f"extract.{name}.ask": detail.ask for name, detail in self.extract.items()}
        for where, text in texts.items():
            if "{{" in text:  # callers could write them
                raise ValueError(f"{where}: has no variables, as those may be the caller's words")
        if self.base_url and not self.model:
            raise ValueError("a base_url needs model, as its server names it")
        return self

    def model_beside(self, agent: ChatModel) -> ChatModel:
        """Returns the model that is asked: what this table leaves open is that of its agent."""
        keys = set(ChatModel.model_fields)
        if self.base_url:  # another server gets no secrets of that one
            keys -= set(_OF_A_SERVER)
        values = {key: getattr(agent, key) for key in keys}
        given = {key for key in ChatModel.model_fields if key in self.model_fields_set}
        own = {key: getattr(self, key) for key in given if getattr(self, key) != ""}
        return ChatModel.model_construct(**values | own | {"max_tokens": self.max_tokens})
