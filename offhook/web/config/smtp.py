"""`[smtp]`: the mail server by which messages of a voicemail are sent."""

from typing import Literal, Self

from pydantic import Field, model_validator

from offhook.web.config.section import Secret, Section


class Smtp(Section):
    host: str = Field("", pattern=r"^\S*$", examples=["smtp.example.com"])
    """Mail server; empty: messages are not mailed."""
    port: int = Field(587, ge=1, le=65535)
    """Its port."""
    security: Literal["starttls", "tls", "off"] = "starttls"
    """How the connection is encrypted: from its beginning (`tls`, usually port 465), after a
    greeting, or never, as for a server on this machine."""
    username: str = ""
    """Name with which it signs in; empty: it does not."""
    password: Secret = ""
    """Password with which it signs in."""
    sender: str = Field("", pattern=r"^([^@\s]+@[^@\s]+)?$", examples=["voicemail@example.com"])
    """Address from which mail comes."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.host and not self.sender:
            raise ValueError("sender: from which address does mail come?")
        if self.username and not self.password:
            raise ValueError("password: username needs one")
        if self.username and self.security == "off" and self.host not in ("127.0.0.1", "localhost"):
            raise ValueError("security: off would send the password for everybody to read")
        return self
