"""Compact notations for sets and tables of words."""


def words(text: str) -> frozenset[str]:
    """Returns the set of words in a text."""
    return frozenset(text.split())


def table(text: str) -> dict[str, str]:
    """Parses "key = value | key = value"; surrounding white space is ignored."""
    pairs = (entry.split("=") for entry in text.split("|"))
    return {key.strip(): value.strip() for key, value in pairs}
