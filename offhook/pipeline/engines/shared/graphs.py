"""Model stages captured as CUDA graphs: integers in, a tensor out, one graph per size.

The description of a batch (streams, pages, tokens) reaches the device as one integer buffer in one
copy. A stage is a plain function of tensors cut from that buffer. On a GPU it is captured for a
ladder of sizes and replayed; on a CPU the same function runs directly.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray
from torch import Tensor

from offhook.pipeline.speech.errors import EngineError

Ints = NDArray[np.int64]
Fields = dict[str, Tensor]
WARM_UP_RUNS = 2
"""Runs before a capture, in which Triton compiles and cuBLAS allocates its workspace."""


class Size(NamedTuple):
    """The capacity of a captured stage; each stage defines what the numbers count."""

    items: int
    groups: int = 0


class _Host:
    """One size's integers in host memory, page-locked for a GPU, split into fields. All but those
    from `uncleared` on are zeroed for each launch."""

    def __init__(self, layout: dict[str, int], pinned: bool, uncleared: str = "") -> None:
        self.tensor = torch.zeros(_length(layout), dtype=torch.int64, pin_memory=pinned)
        whole = self.tensor.numpy()
        cuts = dict(_cuts(layout))
        self.fields: dict[str, Ints] = {name: whole[part] for name, part in cuts.items()}
        self._cleared = whole[: cuts[uncleared].start] if uncleared else whole
        self.copied = torch.cuda.Event() if pinned else None

    def clear(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()  # the previous copy may still be reading
        self._cleared.fill(0)


def _cuts(layout: dict[str, int]) -> Iterator[tuple[str, slice]]:
    """Yields the slice of each field. All are 16-byte aligned; otherwise Triton would compile
    another kernel variant."""
    at = 0
    for name, count in layout.items():
        yield name, slice(at, at + count)
        at += count + count % 2


def _length(layout: dict[str, int]) -> int:
    return sum(count + count % 2 for count in layout.values())


class _Captured:
    """One captured size on a GPU, with two alternating host buffers, so that a launch can be
    prepared while the previous one runs."""

    def __init__(self, layout: dict[str, int], device: torch.device, uncleared: str) -> None:
        self._hosts = (_Host(layout, True, uncleared), _Host(layout, True, uncleared))
        self._turn = 0
        self.ints = torch.zeros_like(self._hosts[0].tensor, device=device)
        self.fields: Fields = {name: self.ints[part] for name, part in _cuts(layout)}
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
    """A function of integer tensors, captured at several sizes.

    `run(fields)` must launch the same kernels for any integers; unset fields are 0, which every
    stage treats as scratch. `sizes` are ascending; empty (CPU) means that every size is exact.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Fields, Size], Tensor],
        layout: Callable[[Size], dict[str, int]],
        sizes: Sequence[Size],
        device: torch.device,
        least: int = 1,
        uncleared: str = "",
    ) -> None:
        """`least`: items that the largest size must hold, however little memory there is. Fields
        from `uncleared` on, if any, keep what earlier launches had."""
        self.name = name
        self.least = least
        self.sizes = tuple(sizes)
        self._run = run
        self._layout = layout
        self._device = device
        self._uncleared = uncleared
        self.last_graph: torch.cuda.CUDAGraph | None = None
        """The graph launched last, for timing it separately."""
        self._captured: dict[Size, _Captured] = {}
        self._host: _Host | None = None

    @property
    def largest(self) -> Size | None:
        return self.sizes[-1] if self.sizes else None

    def most(self, otherwise: int) -> int:
        """Returns the items that the largest size holds; `otherwise` where every size is exact."""
        return self.sizes[-1].items if self.sizes else otherwise

    def fit(self, wanted: Size) -> Size:
        """Returns the smallest size that holds `wanted`. Raises ValueError if none does."""
        if not self.sizes:
            return wanted
        for size in self.sizes:
            if size.items >= wanted.items and size.groups >= wanted.groups:
                return size
        raise ValueError(f"{self.name}: {wanted} is larger than the largest size {self.sizes[-1]}")

    def fields(self, size: Size) -> dict[str, Ints]:
        """Returns the host integers for the next launch of this size, zeroed, to be filled in."""
        if self.sizes:
            host = self._captured[size].next_host()
            host.clear()
        else:
            host = self._host = _Host(self._layout(size), False, self._uncleared)
        return host.fields

    def launch(self, size: Size) -> Tensor:
        """Launches on the current CUDA stream and returns the result, which the next launch of this
        size overwrites."""
        if not self.sizes:
            assert self._host is not None
            cuts = _cuts(self._layout(size))
            return self._run({name: self._host.tensor[part] for name, part in cuts}, size)
        captured = self._captured[size]
        captured.upload()
        if captured.graph is None:
            return self._run(captured.fields, size)
        captured.graph.replay()
        self.last_graph = captured.graph
        assert captured.out is not None
        return captured.out

    def capture(self, size: Size, pool: Any, graphs: bool = True) -> None:
        """Captures `size` on the current CUDA stream, which must not be the default one. Without
        `graphs` the kernels are launched one by one, for comparison."""
        captured = self._captured[size] = _Captured(
            self._layout(size), self._device, self._uncleared
        )
        for _ in range(WARM_UP_RUNS):
            self._run(captured.fields, size)
        torch.cuda.current_stream().synchronize()
        if graphs:
            captured.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured.graph, pool=pool, stream=torch.cuda.current_stream()):
                captured.out = self._run(captured.fields, size)

    def drop(self, size: Size) -> None:
        """Does without this size: smaller launches, or a larger one, take its place."""
        self._captured.pop(size, None)
        self.sizes = tuple(kept for kept in self.sizes if kept != size)


def on(stream: "torch.cuda.Stream | None") -> AbstractContextManager[object]:
    """Returns a context in which launches go to the stream; None for a CPU."""
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def capture_all(
    stages: Sequence[tuple[Stage, "torch.cuda.Stream | None"]],
    graphs: bool,
    progress: Callable[[float, str], None],
) -> None:
    """Captures every size of the stages, each on its CUDA stream; stages on the same stream share
    memory. Sizes for which there is not enough memory are left out. For `graphs` see
    `Stage.capture`. Raises EngineError if too little of a stage is left."""
    total = sum(len(stage.sizes) for stage, _ in stages)
    done = 0
    pools = {id(s): torch.cuda.graph_pool_handle() for _, s in stages if s is not None}
    for stage, stream in stages:
        too_large = []
        for size in reversed(stage.sizes):  # largest first: the others fit in its memory
            progress(done / total, f"{stage.name} for {size.items}")
            with on(stream):
                captured = _captures(stage, size, pools.get(id(stream)), graphs)
            if not captured:  # by now nothing refers to what it had allocated
                stage.drop(size)
                torch.cuda.empty_cache()
                too_large.append(size.items)
            done += 1
        if too_large:
            _report(stage, too_large)
    progress(1.0, "ready")


def _captures(stage: Stage, size: Size, pool: Any, graphs: bool) -> bool:
    try:
        stage.capture(size, pool, graphs)
    except torch.OutOfMemoryError:
        return False
    return True


def _report(stage: Stage, too_large: Sequence[int]) -> None:
    """Raises EngineError if the stage is too small without these sizes."""
    sizes = ", ".join(map(str, too_large))
    what = f"{stage.name}: the GPU has not enough memory for launches of {sizes}"
    if stage.most(0) < stage.least:
        raise EngineError(f"{what}, and fewer than {stage.least} are of no use")
    logger.warning("{}; the largest is {}", what, stage.most(0))


class Pending:
    """A result being copied to `host`, page-locked memory that nothing else uses meanwhile."""

    def __init__(self, values: Tensor, host: Tensor) -> None:
        self._host = host[: values.shape[0]]
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = values

    @property
    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def numpy(self) -> NDArray[np.generic]:
        """Waits for the device and returns the array."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
