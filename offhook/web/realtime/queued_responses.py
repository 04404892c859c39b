"""The responses that wait to be played or are playing, and where each of their words ends."""

from collections import deque
from collections.abc import Iterator, Sequence


class QueuedResponses:
    """Responses in the order in which they are played, the one that is playing first."""

    def __init__(self) -> None:
        self._ids: deque[str] = deque()
        self._words: dict[str, list[tuple[str, int]]] = {}
        """By response, each word with its end in ms."""

    def __bool__(self) -> bool:
        return bool(self._ids)

    @property
    def first(self) -> str:
        """The response that is playing, or plays next."""
        return self._ids[0]

    def add_audio(self, response_id: str) -> None:
        if response_id not in self._ids:
            self._ids.append(response_id)

    def add_words(self, response_id: str, text: str, end_ms: int) -> None:
        """Adds words that end at a position of the response in ms."""
        self._words.setdefault(response_id, []).extend((word, end_ms) for word in text.split())

    def end_of(self, words: Sequence[str]) -> int:
        """Returns where these words end, in ms, in the response that begins with them; 0 if none
        does."""
        for response_id in self._ids:
            begin = self._words.get(response_id, [])[: len(words)]
            if words and [word for word, _ in begin] == list(words):
                return begin[-1][1]
        return 0

    def played(self) -> Iterator[str]:
        """Removes the responses, which were played to their end, and yields each."""
        while self._ids:
            response_id = self._ids.popleft()
            self._words.pop(response_id, None)
            yield response_id

    def clear(self) -> None:
        self._ids.clear()
        self._words.clear()
