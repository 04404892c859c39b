"""What is found in documents, and in which order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.tools.knowledge.index_io import Index, Vector

PASSAGES = {
    "prices.md": [
        ("A flat tyre costs 12 euros.", "Repairs > Prices", "line 3"),
        ("A new chain costs 35 euros.", "Repairs > Prices", "line 5"),
    ],
    "hours.md": [("We open at nine and close at six.", "Opening hours", "line 1")],
    "räder.md": [("Fahrräder nehmen wir 14 Tage zurück.", "Rückgabe", "line 1")],
    "jp.md": [("自転車の修理は三日かかります。", "修理", "line 1")],
}


@pytest.fixture
def index() -> Index:
    made = Index()
    for file, passages in PASSAGES.items():
        made.add(file, passages)
    return made


@pytest.mark.parametrize(
    ("query", "source"),
    [
        ("What does a chain cost?", "prices.md, line 5"),
        ("tyres", "prices.md, line 3"),
        ("When are you OPEN?", "hours.md, line 1"),
        ("ruckgabe", "räder.md, line 1"),
        ("Kann ich mein Fahrrad zurück geben?", "räder.md, line 1"),
        ("修理", "jp.md, line 1"),
    ],
)
def test_words_find_their_passage(index: Index, query: str, source: str) -> None:
    assert index.search(query, None, 5)[0].source == source


def test_common_words_alone_find_nothing_beside_the_best(index: Index) -> None:
    assert [one.source for one in index.search("a new chain", None, 5)] == ["prices.md, line 5"]


@given(st.text(max_size=200))
def test_any_query_is_a_query(query: str) -> None:
    made = Index()
    made.add("a.md", [('A chain (new) "costs" 35 euros, AND more.', "", "line 1")])
    assert len(made.search(query, None, 5)) <= 1


def test_what_is_not_there_is_not_found(index: Index) -> None:
    assert index.search("helicopter", None, 5) == []
    assert index.search("  ?!", None, 5) == []


def test_passages_of_a_file_come_back_as_they_went_in(index: Index) -> None:
    assert index.of("prices.md") == PASSAGES["prices.md"]
    assert index.of("no.md") == []


def direction(*numbers: float) -> Vector:
    vector = np.array(numbers, np.float32)
    found: Vector = vector / np.linalg.norm(vector)
    return found


def test_vectors_find_what_words_do_not(index: Index) -> None:
    missing = index.without_vectors({})
    assert len(missing) == index.count == 5
    assert missing[0][1] == "prices.md\nRepairs > Prices\nA flat tyre costs 12 euros."
    known = {digest: direction(1, at) for at, (digest, _) in enumerate(missing)}
    known[b"of a passage that is no more"] = direction(1, 1)
    used = index.use_vectors(known)
    assert len(used) == 5
    assert index.without_vectors(used) == []
    found = index.search("helicopter", direction(1, 0), 2)
    assert [one.source for one in found] == ["prices.md, line 3", "prices.md, line 5"]


def test_both_rankings_count(index: Index) -> None:
    missing = index.without_vectors({})
    # By vectors the chain is second; by words it is alone.
    known = {digest: direction(1, at) for at, (digest, _) in enumerate(missing)}
    index.use_vectors(known)
    found = index.search("chain", direction(1, 0), 2)
    assert [one.source for one in found] == ["prices.md, line 5", "prices.md, line 3"]


def test_vectors_of_another_length_are_ignored(index: Index) -> None:
    index.use_vectors({digest: direction(1, 2) for digest, _ in index.without_vectors({})})
    assert index.search("helicopter", direction(1, 2, 3), 2) == []
    assert index.search("chain", direction(1, 2, 3), 2)


def test_texts_that_cannot_be_encoded_are_found(index: Index) -> None:
    index.add("r\udce4der.md", [("A h\ud800elmet", "", "line 1"), ("A saddle", "", "line 2")])
    assert len(index.of("r\udce4der.md")) == 2
    (found,) = index.search("saddle \udfff", None, 5)
    assert found.source == "r?der.md, line 2"
