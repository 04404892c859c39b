"""What routes of phone calls ask of the configuration: hours, and lists of callers."""

from collections.abc import Callable
from datetime import UTC, datetime

from offhook.web.config.config import Config


class RouteConditions:
    """Answers by the configuration as it is now, which may be reloaded."""

    def __init__(
        self,
        config: Callable[[], Config],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now` returns the time, with its zone."""
        self._config, self._now = config, now

    def is_within(self, hours: str) -> bool:
        """Returns whether now is within the named hours."""
        table = self._config().hours.get(hours)
        return table is not None and table.are_at(table.local(self._now()))

    def is_listed(self, callers: str, caller: str) -> bool:
        """Returns whether the named list of callers has this one."""
        listed = self._config().callers.get(callers)
        return listed is not None and listed.has(caller)
