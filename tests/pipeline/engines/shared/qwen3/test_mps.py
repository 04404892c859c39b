"""Kernels that need the whole GPU are not used where other processes' run at the same time."""

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.shared.qwen3 import cuda_step  # noqa: E402


class Driver:
    """Has the attribute on the second GPU; `error` is what it returns."""

    def __init__(self, name: str, error: int = 0) -> None:
        assert name == "libcuda.so.1"
        self._error = error

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        assert attribute == 133
        value._obj.value = int(device == 1)
        return self._error


@pytest.mark.parametrize(("device", "error", "shared"), [(0, 0, False), (1, 0, True), (0, 1, True)])
def test_the_driver_tells_whether_a_gpu_is_shared(
    monkeypatch: pytest.MonkeyPatch, device: int, error: int, shared: bool
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(name, error))
    assert cuda_step.is_shared(torch.device("cuda", device)) is shared
