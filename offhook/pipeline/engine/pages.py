"""Pages of the paged key/value cache: which are free, and where a stream's tokens lie in its own.

The cache itself is the model's; here are only numbers. Page 0 is scratch: padding rows of a batch
write there, so nobody owns it.
"""

from collections.abc import Iterable

PAGE_SIZE = 64
"""Tokens. A stream wastes half a page on average: 32 of about 500 tokens."""


class OutOfPages(RuntimeError):
    """Fewer pages are free than asked for; none was taken."""


class Pages:
    def __init__(self, count: int, page_size: int = PAGE_SIZE) -> None:
        self.count = count
        """Pages of the cache, the scratch page included."""
        self.page_size = page_size
        # Last freed, first taken: the page is the likeliest to be in the device's cache.
        self._free = list(range(count - 1, 0, -1))
        self._taken = bytearray(count)

    @property
    def left(self) -> int:
        """Pages free."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, n: int) -> list[int]:
        """`n` pages that nobody else has. Raises OutOfPages, taking none, when fewer are left."""
        if n > len(self._free):
            raise OutOfPages(f"{n} pages wanted, {len(self._free)} of {self.count - 1} left")
        if n == 0:
            return []
        pages = self._free[-n:][::-1]
        del self._free[-n:]
        for page in pages:
            self._taken[page] = 1
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        for page in pages:
            # A page given back twice would be lent to two callers, who would hear each other.
            assert self._taken[page], f"page {page} is not taken"
            self._taken[page] = 0
            self._free.append(page)
