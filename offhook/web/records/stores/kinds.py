"""Finds the database that a URL names."""

from importlib import import_module

from offhook.pipeline.speech.entry_points import entry_paths, path_of
from offhook.web.records.errors import StoreError
from offhook.web.records.stores.store_kind import StoreKind

GROUP = "offhook.stores"
OURS = {
    "sqlite": "offhook.web.records.stores.sqlite:SQLITE",
    "postgresql": "offhook.web.records.stores.postgresql:POSTGRESQL",
}
"""Our databases, by the schemes of their URLs."""


def kind_of(url: str) -> StoreKind:
    """Returns the database of a URL, and imports it. Raises StoreError."""
    scheme = url.partition("://")[0].partition("+")[0]
    path = OURS.get(scheme) or path_of(GROUP, scheme)
    if path is None:
        known = ", ".join(sorted(OURS.keys() | entry_paths(GROUP).keys()))
        raise StoreError(f"{scheme}: calls cannot be kept in that; only in {known}")
    module, name = path.split(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise StoreError(f"{path}: {error}") from error
    if not isinstance(kind, StoreKind):
        raise StoreError(f"{path} is no StoreKind")
    return kind
