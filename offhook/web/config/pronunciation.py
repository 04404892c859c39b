"""The lexicon of a section of the configuration, which is read with it."""

import tomllib
from pathlib import Path
from typing import Self

from pydantic import PrivateAttr, model_validator

from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.web.config.section import Section

MAX_LEXICON_BYTES = 1_000_000
"""Maximum size of a lexicon; with a larger one the server does not start."""


class Pronouncing(Section):
    lexicon: str = ""
    """TOML file that says how names and words are said, as `Kia = "kee-ah"`; read at the start and
    on a reload. A relative path begins at the folder in which the server is started."""
    _pronunciations: Lexicon = PrivateAttr(NO_LEXICON)

    @property
    def pronunciations(self) -> Lexicon:
        """Returns the content of `lexicon`."""
        return self._pronunciations

    @model_validator(mode="after")
    def _reads_its_lexicon(self) -> Self:
        if self.lexicon:
            try:
                self._pronunciations = read_lexicon(Path(self.lexicon).expanduser())
            except ValueError as error:
                raise ValueError(f"lexicon {self.lexicon}: {error}") from error
        return self

    def with_lexicon_of(self, other: Self) -> Self:
        """Returns these settings with the lexicon of others."""
        copy = self.model_copy(update={"lexicon": other.lexicon})
        copy._pronunciations = other._pronunciations
        return copy


def read_lexicon(file: Path) -> Lexicon:
    """Raises ValueError if it cannot be read, or used."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_LEXICON_BYTES + 1)
    except OSError as error:
        raise ValueError(error.strerror) from error
    if len(data) > MAX_LEXICON_BYTES:
        raise ValueError(f"is over {MAX_LEXICON_BYTES} bytes")
    try:
        return Lexicon.of_table(tomllib.loads(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
