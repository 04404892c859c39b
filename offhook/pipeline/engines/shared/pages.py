"""Allocates pages of the paged KV cache and maps a stream's positions to them.

The cache itself belongs to the model; only page numbers are handled here. Page 0 is scratch space
that padding rows write to, so no stream owns it.
"""

from collections.abc import Iterable

PAGE_SIZE = 64
"""Tokens per page. A stream wastes half a page on average, 32 of about 500 tokens."""


class OutOfPages(RuntimeError):
    """Raised when fewer pages are free than requested; none was allocated."""


class Pages:
    def __init__(self, count: int, page_size: int = PAGE_SIZE) -> None:
        self.count = count
        """Pages of the cache, including the scratch page."""
        self.page_size = page_size
        # Last in, first out: a recently used page is likeliest to be in the device's cache.
        self._free = list(range(count - 1, 0, -1))
        self._taken = bytearray(count)

    @property
    def left(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Returns the number of pages that `tokens` tokens occupy."""
        return -(-tokens // self.page_size)

    def allocate(self, n: int) -> list[int]:
        """Allocates `n` pages. Raises OutOfPages, allocating none, if fewer are free."""
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
        """Returns pages to the pool."""
        for page in pages:
            # A page freed twice would be allocated to two callers, whose audio would mix.
            assert self._taken[page], f"page {page} is not taken"
            self._taken[page] = 0
            self._free.append(page)
