"""Products in 8 bits: close to those in 32, and the same for a row in any company."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.shared.model.instructions import Instructions  # noqa: E402
from offhook.pipeline.engines.shared.model.int8 import (  # noqa: E402
    MIN_WEIGHTS,
    Int8Linear,
    instructions,
    quantize,
)
from offhook.pipeline.engines.shared.qwen3.linear import Linear  # noqa: E402

ON_X86 = torch.cpu.get_capabilities().get("avx2", False)
POSSIBLE = [
    by
    for by in Instructions
    if by is Instructions.OTHER or (ON_X86 and (by is Instructions.AVX or by is instructions()))
]


@pytest.fixture(autouse=True)
def engine() -> object:
    before = torch.backends.quantized.engine
    yield
    torch.backends.quantized.engine = before


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("by", POSSIBLE)
def test_a_product_is_close_and_a_row_does_not_depend_on_others(by: Instructions) -> None:
    weight, bias, x = drawn(96, 256) * 0.02, drawn(96, seed=1), drawn(9, 256, seed=2)
    x[3, 5] = 80.0  # a loud channel costs its own row precision, and no other
    x[4] = 0.0
    layer = Int8Linear(weight, bias, by)
    out = layer(x)
    exact = x @ weight.T
    error = (out - bias - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-6)
    quiet = [0, 1, 2, 5, 6, 7, 8]
    assert error[quiet].max() < (0.03 if by is Instructions.AVX else 0.015)
    assert torch.equal(out[4], bias)
    for row in range(len(x)):
        assert torch.equal(layer(x[row : row + 1]), out[row : row + 1])
    assert torch.equal(layer(x.view(3, 3, 256)), out.view(3, 3, 96))


@pytest.mark.skipif(not ON_X86, reason="needs an x86 CPU")
def test_sums_do_not_overflow_without_vnni() -> None:
    """In a process of its own: oneDNN asks once which instructions it may use."""
    largest = (
        "import torch\n"
        "from offhook.pipeline.engines.shared.model.int8 import Instructions, Int8Linear\n"
        "from offhook.pipeline.engines.shared.model.int8 import instructions\n"
        "assert instructions() is Instructions.AVX\n"
        "layer = Int8Linear(torch.ones(64, 512), None, instructions())\n"
        "print(layer(torch.ones(2, 512)).unique().tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", largest],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[512.0]"


def test_small_layers_stay_as_they_are() -> None:
    side = int(MIN_WEIGHTS**0.5)
    small, large = Linear(side - 1, side - 1), Linear(side + 1, side + 1)
    for layer in (small, large):
        layer.weight.data.copy_(drawn(*layer.weight.shape))
        layer.bias.data.zero_()
    model = torch.nn.Sequential(small, torch.nn.Sequential(large)).requires_grad_(False)
    quantize(model, instructions())
    assert model[0] is small
    assert isinstance(model[1][0], Int8Linear)
