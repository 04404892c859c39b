"""A stage of the model: integers in, a tensor out, captured as a CUDA graph once per size.

What a batch is made of - which stream, which page, which token - reaches the device as one buffer
of integers in one copy. A stage is a plain function of the tensors cut from that buffer. On a GPU
it is captured for a ladder of sizes and replayed; on a CPU the same function runs as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Fields = dict[str, Tensor]
WARM_UP_RUNS = 2
"""Before a capture: Triton compiles and cuBLAS takes its workspace."""


class Size(NamedTuple):
    """How much a stage is built for; what the numbers mean is the stage's affair."""

    items: int
    groups: int = 0


class _Host:
    """The integers of one size in host memory, page-locked for a GPU, cut in fields."""

    def __init__(self, layout: dict[str, int], pinned: bool) -> None:
        self.tensor = torch.zeros(sum(layout.values()), dtype=torch.int64, pin_memory=pinned)
        cuts = np.cumsum(list(layout.values()))[:-1]
        pieces = np.split(self.tensor.numpy(), cuts)
        self.fields: dict[str, Ints] = dict(zip(layout, pieces, strict=True))
        self.copied = torch.cuda.Event() if pinned else None

    def clear(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()  # the copy before may still be reading
        self.tensor.zero_()


class _Captured:
    """One size on a GPU. Two host buffers take turns, so that a launch can be prepared while the
    one before it runs."""

    def __init__(self, layout: dict[str, int], device: torch.device) -> None:
        self._hosts = (_Host(layout, True), _Host(layout, True))
        self._turn = 0
        self.ints = torch.zeros_like(self._hosts[0].tensor, device=device)
        self.fields: Fields = dict(zip(layout, self.ints.split(list(layout.values())), strict=True))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.out: Tensor | None = None

    def next_host(self) -> _Host:
        self._turn ^= 1
        return self._hosts[self._turn]

    def upload(self) -> None:
        host = self._hosts[self._turn]
        self.ints.copy_(host.tensor, non_blocking=True)
        assert host.copied is not None
        host.copied.record()


class Stage:
    """One function of integers, at the sizes it is captured for.

    ``run(fields)`` must launch the same kernels whatever the integers are; fields not filled are 0,
    which every stage understands as scratch. `sizes` ascend; empty (CPU): every size is exact.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Fields, Size], Tensor],
        layout: Callable[[Size], dict[str, int]],
        sizes: Sequence[Size],
        device: torch.device,
    ) -> None:
        self.name = name
        self.sizes = tuple(sizes)
        self._run = run
        self._layout = layout
        self._device = device
        self.last_graph: torch.cuda.CUDAGraph | None = None
        """Launched last; to be timed by itself."""
        self._captured: dict[Size, _Captured] = {}
        self._host: _Host | None = None

    @property
    def largest(self) -> Size | None:
        return self.sizes[-1] if self.sizes else None

    def fit(self, wanted: Size) -> Size:
        """The smallest size that holds `wanted`. Raises ValueError when none does."""
        if not self.sizes:
            return wanted
        for size in self.sizes:
            if all(map(int.__ge__, size, wanted)):
                return size
        raise ValueError(f"{self.name}: {wanted} is larger than the largest size {self.sizes[-1]}")

    def fields(self, size: Size) -> dict[str, Ints]:
        """The host's integers for the next launch of this size, all 0, to be filled in."""
        if self.sizes:
            host = self._captured[size].next_host()
            host.clear()
        else:
            host = self._host = _Host(self._layout(size), pinned=False)
        return host.fields

    def launch(self, size: Size) -> Tensor:
        """Run on the current CUDA stream; the next launch of the size overwrites the result."""
        if not self.sizes:
            assert self._host is not None
            cut = self._host.tensor.split(list(self._layout(size).values()))
            return self._run(dict(zip(self._host.fields, cut, strict=True)), size)
        captured = self._captured[size]
        captured.upload()
        if captured.graph is None:
            return self._run(captured.fields, size)
        captured.graph.replay()
        self.last_graph = captured.graph
        assert captured.out is not None
        return captured.out

    def capture(self, size: Size, pool: Any, graphs: bool = True) -> None:
        """Make ready for `size` on the current CUDA stream, which is not the default one. Without
        `graphs` the size is run kernel by kernel (to compare)."""
        captured = self._captured[size] = _Captured(self._layout(size), self._device)
        for _ in range(WARM_UP_RUNS):
            self._run(captured.fields, size)
        torch.cuda.current_stream().synchronize()
        if graphs:
            captured.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured.graph, pool=pool, stream=torch.cuda.current_stream()):
                captured.out = self._run(captured.fields, size)
