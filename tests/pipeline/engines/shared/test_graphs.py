"""Stages whose largest launches do not fit in the memory of the GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from loguru import logger  # noqa: E402
from torch import Tensor  # noqa: E402

from offhook.pipeline.engines.shared.device_io import dtype_of  # noqa: E402
from offhook.pipeline.engines.shared.graphs import Fields, Size, Stage, _Host, capture_all  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402

CPU = torch.device("cpu")


def run(fields: Fields, size: Size) -> Tensor:
    raise AssertionError("nothing is launched here")


class Tight(Stage):
    """A stage on a GPU with memory for so many items; what a failed capture has allocated is
    released with it."""

    def __init__(self, name: str, room: int, sizes: list[int], least: int = 1) -> None:
        super().__init__(name, run, lambda s: {}, [Size(n) for n in sizes], CPU, least)
        self.room = room
        self.tried: list[int] = []

    def capture(self, size: Size, pool: Any, graphs: bool = True) -> None:
        self.tried.append(size.items)
        if size.items > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def test_a_launch_begins_with_zeros_up_to_what_is_not_cleared() -> None:
    host = _Host({"a": 3, "b": 1, "c": 2, "d": 2}, pinned=False, uncleared="c")
    for values in host.fields.values():
        values[:] = 7
    host.clear()
    kept = {name: values.tolist() for name, values in host.fields.items()}
    assert kept == {"a": [0, 0, 0], "b": [0], "c": [7, 7], "d": [7, 7]}


def captured(*stages: Stage) -> list[str]:
    """Returns what is logged."""
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(line.record["message"]), level="WARNING")
    try:
        capture_all([(stage, None) for stage in stages], True, lambda fraction, what: None)
    finally:
        logger.remove(sink)
    return lines


def test_the_largest_size_that_fits_takes_the_place_of_larger_ones() -> None:
    stage, other = Tight("step", 200, [1, 64, 128, 256, 512]), Tight("codec", 9, [1, 8])
    assert captured(stage, other) == [
        "step: the GPU has not enough memory for launches of 512, 256; the largest is 128"
    ]
    assert stage.tried == [512, 256, 128, 64, 1]
    assert [size.items for size in stage.sizes] == [1, 64, 128]
    assert (stage.most(0), stage.fit(Size(65)), other.most(0)) == (128, Size(128), 8)
    with pytest.raises(ValueError, match="larger than the largest"):
        stage.fit(Size(129))


@pytest.mark.parametrize(("room", "least"), [(0, 1), (200, 256)])
def test_a_stage_that_is_too_small_without_them_does_not_load(room: int, least: int) -> None:
    with pytest.raises(EngineError, match=f"prefill: .* 512, 256.*fewer than {least} are of no"):
        captured(Tight("prefill", room, [64, 256, 512], least))


def test_another_error_is_none_of_memory() -> None:
    class Broken(Tight):
        def capture(self, size: Size, pool: Any, graphs: bool = True) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        captured(Broken("step", 1, [1]))


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)],
)
def test_gpus_without_bf16_compute_in_fp16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert dtype_of(torch.device("cuda")) == dtype
    assert dtype_of(torch.device("cuda"), "fp32") == torch.float32
    assert dtype_of(CPU) == torch.float32
