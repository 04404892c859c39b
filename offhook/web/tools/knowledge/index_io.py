"""An index of passages: by their words (BM25, of SQLite's full-text search), and by vectors where
they have some; both merged by reciprocal rank fusion. In memory; blocks, for one thread."""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from os.path import splitext

import numpy as np
import numpy.typing as npt

from offhook.pipeline.conversation.passages import Passage

Vector = npt.NDArray[np.float32]
"""One of length 1."""

MAX_QUERY_CHARS = 1000
"""Characters of a query that count; the rest is ignored."""
MAX_QUERY_WORDS = 48
"""Words of a query that count, of those that differ; further ones are ignored."""
CANDIDATES = 24
"""Passages that each way of searching contributes."""
LEAST_SCORE = 0.25
"""Share of the best passage's BM25 that another one must have: those with less have only words such
as "the" in common with the query."""
FUSION = 60
"""Constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)."""
HEADING_WEIGHT, FILE_WEIGHT = 2.0, 1.0
"""Of a word in the headings or in the file's name; in the text it has 1."""
_WORD = re.compile(r"\w+")
_CHARACTERS = re.compile("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
"""Characters of scripts that put no blanks between words: each is indexed as a word."""
_SCHEMA = """
CREATE TABLE passages (
    id INTEGER PRIMARY KEY, file TEXT, headings TEXT, place TEXT, text TEXT, digest BLOB
);
CREATE INDEX by_file ON passages (file);
CREATE VIRTUAL TABLE words USING fts5(
    text, headings, file, content='', tokenize='porter unicode61 remove_diacritics 2'
);
"""
_SEARCH = (
    f"SELECT rowid, -bm25(words, 1.0, {HEADING_WEIGHT}, {FILE_WEIGHT}) AS score FROM words "
    f"WHERE words MATCH ? ORDER BY score DESC LIMIT {CANDIDATES}"
)


class Index:
    """The passages of an agent's documents."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.executescript(_SCHEMA)
        self.count = 0
        """Passages."""
        self._vectors: npt.NDArray[np.float32] | None = None
        """One of each passage, in the order of their ids; None: there are none."""

    def add(self, file: str, passages: Iterable[tuple[str, str, str]]) -> None:
        """Adds passages of a file, each its text, headings and place."""
        file = _encodable(file)
        self._db.execute("BEGIN")
        for passage in passages:
            text, headings, place = map(_encodable, passage)
            self.count += 1
            digest = blake2b(f"{file}\0{headings}\0{text}".encode())
            row = self.count, file, headings, place, text, digest.digest()[:16]
            self._db.execute("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?)", row)
            words = self.count, *map(_spaced, (text, headings, splitext(file)[0]))
            insert = "INSERT INTO words (rowid, text, headings, file) VALUES (?, ?, ?, ?)"
            self._db.execute(insert, words)
        self._db.execute("COMMIT")

    def of(self, file: str) -> list[tuple[str, str, str]]:
        """Returns the passages of a file, as `add` takes them."""
        select = "SELECT text, headings, place FROM passages WHERE file = ? ORDER BY id"
        return self._db.execute(select, (_encodable(file),)).fetchall()

    def without_vectors(self, known: Mapping[bytes, Vector]) -> list[tuple[bytes, str]]:
        """Returns the passages that have no vector among those known, as their digests and what is
        made a vector of."""
        select = "SELECT digest, file, headings, text FROM passages ORDER BY id"
        return [
            (digest, "\n".join(filter(None, (file, headings, text))))
            for digest, file, headings, text in self._db.execute(select)
            if digest not in known
        ]

    def use_vectors(self, known: Mapping[bytes, Vector]) -> dict[bytes, Vector]:
        """Searches by these vectors too, from now on. Returns those that are in use; the others are
        of passages that are no more."""
        digests = [row[0] for row in self._db.execute("SELECT digest FROM passages ORDER BY id")]
        if not digests:
            return {}
        vectors = np.stack([known[digest] for digest in digests])
        self._vectors = vectors
        return dict(zip(digests, vectors, strict=True))

    def search(self, query: str, vector: Vector | None, most: int) -> list[Passage]:
        """Returns the best passages for a query, the best first."""
        ranked = [self._by_words(query)]
        if vector is not None and self._vectors is not None:
            ranked.append(self._by_vector(vector))
        return [self._passage(one) for one in _fused(ranked)[:most]]

    @property
    def dimensions(self) -> int:
        """Returns the length of its vectors; 0 without."""
        return 0 if self._vectors is None else int(self._vectors.shape[1])

    def _by_words(self, query: str) -> list[int]:
        words = dict.fromkeys(_WORD.findall(_spaced(query[:MAX_QUERY_CHARS].lower())))
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in list(words)[:MAX_QUERY_WORDS])
        rows = self._db.execute(_SEARCH, (match,)).fetchall()
        return [number for number, score in rows if score >= LEAST_SCORE * rows[0][1]]

    def _by_vector(self, vector: Vector) -> list[int]:
        assert self._vectors is not None
        if len(vector) != self.dimensions:
            return []
        near = self._vectors @ vector
        return [int(at) + 1 for at in np.argsort(-near, kind="stable")[:CANDIDATES]]

    def _passage(self, number: int) -> Passage:
        select = "SELECT file, place, headings, text FROM passages WHERE id = ?"
        file, place, headings, text = self._db.execute(select, (number,)).fetchone()
        return Passage(f"{file}, {place}", headings, text)

    def close(self) -> None:
        self._db.close()


def _fused(ranked: Sequence[Sequence[int]]) -> list[int]:
    """Returns the items of several rankings, the best of all first."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in ranked:
        for rank, one in enumerate(ranking, 1):
            scores[one] += 1 / (FUSION + rank)
    return sorted(scores, key=lambda one: -scores[one])


def _spaced(text: str) -> str:
    """Returns a text with blanks around characters that are words."""
    return _CHARACTERS.sub(r" \1 ", text)


def _encodable(text: str) -> str:
    """Returns a text without lone surrogates, as of a file's name that is not UTF-8: SQLite takes
    none."""
    return text.encode("utf-8", "replace").decode()
