"""How a bucket is reached."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BucketSettings:
    """A bucket, its server and the key with which it is used."""

    bucket: str
    endpoint: str = ""
    """URL of the server; empty: Amazon's."""
    prefix: str = ""
    """What the names of the files begin with."""
    region: str = ""
    path_style: bool = False
    """Whether the bucket is named in the path of a URL, not in its host."""
    access_key: str = ""
    """Empty: as the environment or the machine has it."""
    secret_key: str = field(default="", repr=False)
    links: bool = False
    """Whether players get signed links."""
