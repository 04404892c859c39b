"""`[s3]`: the bucket in which recordings are kept."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from offhook.web.config.section import Secret, Section
from offhook.web.records.bucket.settings import BucketSettings


class S3(Section):
    bucket: str = Field("", pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$")
    """Bucket in which recordings are kept once their calls are over. Empty: they stay in
    [recording] `directory`. Needs the extra `s3`."""
    endpoint: str = Field("", examples=["https://minio.example:9000"])
    """URL of a server that speaks S3's protocol; empty: Amazon's."""
    prefix: str = Field("", pattern=r"^([A-Za-z0-9_.-][A-Za-z0-9_./-]*)?$", examples=["offhook/"])
    """What the names of the files in the bucket begin with."""
    region: str = ""
    """Region of the bucket; empty: that of the environment (`AWS_REGION`), or us-east-1."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """Whether the bucket is named in the path of a URL or in its host; auto: in the path with an
    `endpoint`, in the host at Amazon."""
    access_key: str = ""
    """Id of the key. Empty: as the environment, the files in ~/.aws or the machine's role have
    it."""
    secret_key: Secret = ""
    """The key's secret."""
    secret_key_file: Path | None = None
    """File with that secret, in place of `secret_key`."""
    links: bool = False
    """Whether players are sent on to a signed link of the bucket for recordings that are not
    encrypted: browsers must reach `endpoint` then. False: they are read through this server."""

    @field_validator("endpoint")
    @classmethod
    def _is_a_server(cls, endpoint: str) -> str:
        if endpoint and not re.fullmatch(r"https?://[^/?#@\s]+/?", endpoint):
            raise ValueError("not the URL of a server, as https://minio.example:9000")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _has_a_whole_key(self) -> Self:
        if self.secret_key and self.secret_key_file is not None:
            raise ValueError("secret_key and secret_key_file exclude each other")
        has_secret = bool(self.secret_key) or self.secret_key_file is not None
        if has_secret != bool(self.access_key):
            raise ValueError("access_key goes with its secret: secret_key or secret_key_file")
        return self

    @property
    def links_from(self) -> str:
        """Returns from where a page loads what signed links name, as CSP has it; "" without."""
        if not self.links:
            return ""
        if not self.endpoint:
            return "https://*.amazonaws.com"
        in_host = self.endpoint.replace("//", f"//{self.bucket}.")
        return in_host if self._in_host else self.endpoint

    @property
    def _in_host(self) -> bool:
        return self.addressing == "virtual" or (self.addressing == "auto" and not self.endpoint)

    @property
    def settings(self) -> BucketSettings:
        """Returns how the bucket is reached, with its secret. Raises ValueError."""
        names = ("bucket", "endpoint", "prefix", "region", "access_key", "links")
        return BucketSettings(
            **{name: getattr(self, name) for name in names},
            path_style=not self._in_host,
            secret_key=self._secret(),
        )

    def _secret(self) -> str:
        if self.secret_key_file is None:
            return self.secret_key
        try:
            return self.secret_key_file.expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is no text"
            raise ValueError(f"secret_key_file {self.secret_key_file}: {why}") from error
