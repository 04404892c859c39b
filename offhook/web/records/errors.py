"""Exceptions of the store of calls."""


class StoreError(Exception):
    """Raised when the store cannot be opened or used; says what to do."""


class EntryError(StoreError):
    """Raised when the database is there and refuses what is written, as it would again."""


class SearchError(ValueError):
    """Raised for a search that cannot be made; says which parameter is wrong."""
