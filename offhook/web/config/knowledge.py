"""How the documents of agents are searched."""

from typing import Self

from pydantic import Field, model_validator

from offhook.web.config.section import Secret, Section


class Knowledge(Section):
    """How documents are searched: by their words, and by vectors too where a server makes them."""

    embeddings_url: str = Field(
        "", pattern=r"^(https?://[^/?#@\s]+(/[^?#@\s]*)?)?$", examples=["http://localhost:8000/v1"]
    )
    """URL of a server with OpenAI's embeddings API, which gets all text of the documents, and what
    is looked for; empty: they are searched by their words alone, on this machine."""
    embeddings_model: str = Field("", examples=["text-embedding-3-small"])
    """Name of the embedding model at that server."""
    embeddings_api_key: Secret = ""
    """Bearer token for that server."""

    @model_validator(mode="after")
    def _names_a_model(self) -> Self:
        if bool(self.embeddings_url) != bool(self.embeddings_model):
            raise ValueError("embeddings_url and embeddings_model belong together")
        return self
