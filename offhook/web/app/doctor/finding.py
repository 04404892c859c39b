"""A finding of `offhook doctor`."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["ok", "note", "fails"]


@dataclass(frozen=True)
class Finding:
    subject: str
    verdict: Outcome
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.verdict:>5}  {self.subject}: {self.detail}"
