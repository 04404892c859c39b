"""Residual units of `codec` in CUDA C, for large batches on a Hopper GPU (sm_90a).

The kernels of `triton_codec_convolution` read the rows of x once for each tap, and all weights for
each tile. Here (`residual_unit.cu`) the rows of a tile are copied into shared memory once and serve
all taps. The weights of 96 channels stay there, in blocks that take tile after tile; those of 192
pass by. NVRTC, which comes with torch, compiles the kernels, in some 5 s.

A block needs nearly all shared memory of a multiprocessor. Under CUDA MPS it would wait until those
of other processes have left one, while theirs do not wait for it. So they are left out there.
docs/choices.md compares them with those in Triton.
"""

import functools
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.codec import DILATIONS, TAPS, Residual, Snake
from offhook.pipeline.engines.shared.qwen3.cuda_step import is_shared

HOPPER = (9, 0)
LEAST_ROWS = {96: 12_000, 192: 20_000}
"""By channels: the rows from which these kernels are faster than those of Triton."""
TILE = 128
"""Rows of a tile, all of one stream."""
TILES = 2
"""Tiles that a block works at at a time."""
THREADS = {96: 512, 192: 384}
STAGES, STAGE = 6, 32
"""With 192 channels: the stages of the ring of weights, and the inputs in one."""
BARRIERS = 256
"""Bytes of its barriers."""


def fits(x: Tensor) -> bool:
    """Returns whether `residual_unit` supports the packed x and is the fastest way."""
    rows, channels = x.shape
    return (
        rows >= LEAST_ROWS.get(channels, rows + 1)
        and x.dtype == torch.bfloat16
        and hasattr(torch.cuda, "_compile_kernel")
        and torch.cuda.get_device_capability(x.device) == HOPPER
        and not is_shared(x.device)
    )


def residual_unit(
    unit: Residual, x: Tensor, *, add: Tensor, keep: bool, snake: Snake, to: Tensor
) -> Tensor:
    """`unit`, of x with its first snake applied, through `snake`.

    Args:
        x: padded, [B, length + T, channels].
        add: packed, x without the snake.
        keep: what there is before `snake` is returned.
        snake: always the same for a unit.
        to: padded by any number of rows: where what comes out is written.

    Returns: packed, what is kept.
    """
    streams, rows, channels = x.shape
    rows -= unit.conv1.length
    kept = x.new_empty(streams * rows if keep else 0, channels)
    tiles = streams * -(-rows // TILE)
    _compiled(channels)(
        (min(-(-tiles // TILES), _multiprocessors(x.device)), 1, 1),
        (THREADS[channels], 1, 1),
        [
            *(x, *_packed(unit, snake), add, kept if keep else x, to),
            *(streams, rows, to.shape[1], unit.conv1.dilation, int(keep)),
        ],
        shared_mem=_shared_memory(channels, unit.conv1.dilation),
    )
    return kept


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _shared_memory(channels: int, dilation: int) -> int:
    """Returns the bytes that a block needs: weights, six numbers a channel, and rows."""
    if channels == 96:
        weights = 2 * (TAPS + 1) * channels**2
    else:
        weights = 2 * STAGES * STAGE * channels + BARRIERS
    rows = TILES * (TILE + (TAPS - 1) * dilation)
    return weights + 4 * 6 * channels + 2 * rows * channels


@functools.cache
def _compiled(channels: int) -> Any:
    source = files("offhook.pipeline.engines.qwen3_tts.model").joinpath("residual_unit.cu")
    kernel = torch.cuda._compile_kernel(
        f"#define CHANNELS {channels}\n" + source.read_text("utf-8"),
        "residual_unit",
        compute_capability="90a",
        nvcc_options=["--device-as-default-execution-space"],
    )
    kernel.set_shared_memory_config(_shared_memory(channels, max(DILATIONS)))
    return kernel


# --- what the kernels read, in their order ---

_known: WeakKeyDictionary[Residual, tuple[Tensor, Tensor]] = WeakKeyDictionary()


def _packed(unit: Residual, snake: Snake) -> tuple[Tensor, Tensor]:
    """Returns the unit's weights in bf16, and its biases and snakes in fp32; packed once."""
    if unit not in _known:
        numbers = (
            *(unit.conv1.bias, unit.snake2.rate, unit.snake2.depth),
            *(unit.conv2.bias, snake.rate, snake.depth),
        )
        _known[unit] = pack_weights(unit), torch.stack(numbers)
    return _known[unit]


def pack_weights(unit: Residual) -> Tensor:
    """Returns the weights of both convolutions: 8 inputs of all outputs, then the next 8."""
    outputs, taps, inputs = unit.conv1.weight.shape
    order = column_order(outputs, unit.conv1.weight.device)
    # Of 192 channels half the inputs of all taps come first, and for the second convolution a third
    # of the outputs.
    parts, thirds = (1, 1) if outputs == 96 else (2, 3)
    first = unit.conv1.weight.detach()[order]
    first = first.view(outputs, taps, parts, -1, 8).permute(2, 1, 3, 0, 4)
    # Its inputs are the columns of the first product.
    second = unit.conv2.weight.detach()[order][:, 0, order]
    second = second.view(thirds, -1, inputs // 8, 8).permute(0, 2, 1, 3)
    return torch.cat((first.flatten(), second.flatten()))


def column_order(outputs: int, device: torch.device) -> Tensor:
    """Returns the output that each column of a product has; see `residual_unit.cu`."""
    column = torch.arange(outputs, device=device)
    return column // 32 * 32 + column % 8 // 2 * 8 + column // 8 % 4 * 2 + column % 2
