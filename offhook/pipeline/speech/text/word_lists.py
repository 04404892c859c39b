"""Short ways to write down sets and tables of words."""


def words(text: str) -> frozenset[str]:
    """The words of a text, in any order."""
    return frozenset(text.split())


def table(text: str) -> dict[str, str]:
    """Written "key = value | key = value"; white space around them does not count."""
    pairs = (entry.split("=") for entry in text.split("|"))
    return {key.strip(): value.strip() for key, value in pairs}
