"""Where the phones of extensions are, of each server: they are reached there after a restart."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import sqlalchemy as sa

from offhook.telephony.sip.extensions.saved_phones import SavedPhones
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import registrations


class Registrations:
    """The phones of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self, kind: StoreKind, begin: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._begin = kind, begin

    def of(self, server: str, now: float) -> dict[str, str]:
        """Returns what a server has saved of its extensions, and deletes what has expired of any
        server."""
        query = sa.select(registrations.c.extension, registrations.c.phones)
        with self._begin() as connection:
            connection.execute(registrations.delete().where(registrations.c.expires <= now))
            found = connection.execute(query.where(registrations.c.server == server)).all()
        return {row.extension: row.phones for row in found}

    def save(self, server: str, changed: Mapping[str, SavedPhones | None]) -> None:
        """Saves the phones of these extensions in place of those before; None: they have none."""
        with self._begin() as connection:
            for number, saved in changed.items():
                if saved is None:
                    of_extension = registrations.c.extension == number
                    connection.execute(
                        registrations.delete().where(registrations.c.server == server, of_extension)
                    )
                    continue
                row = {"server": server, "extension": number}
                values = {"phones": saved.text, "expires": saved.expires}
                insert = self._kind.insert(registrations).values(row | values)
                connection.execute(
                    insert.on_conflict_do_update(index_elements=list(row), set_=values)
                )
