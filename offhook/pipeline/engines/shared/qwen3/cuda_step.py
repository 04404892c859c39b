"""One row through a whole Qwen3 body, or one frame of the code predictor, in a single launch.

A decode step of one row is bound by reading its weights, and as many kernels as there are products
wait for one another. Here (`step.cu`) one persistent block per multiprocessor runs them all: blocks
synchronize through a counter in memory between products (a grid barrier) and prefetch the next
weights while they wait. NVRTC, which comes with torch, compiles the kernels for a model's sizes.

Supported are bodies of 16 heads and 8 kv heads of 128 channels with bf16 weights, on GPUs with at
least 64 multiprocessors (sm_80 and later); see `fits`. No two of them may run at once on a GPU,
since each occupies its multiprocessors until all of its blocks are resident: two that each have
some would wait for ever. So a process uses one at a time, and none under CUDA MPS.

Prefetching a whole layer's weights into shared memory was no faster (517 us versus 510 for a body
of 28 layers): what remains is the latency between products, five per layer.
"""

import ctypes
import functools
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from offhook.pipeline.engines.shared.qwen3.body import Batch, Body, KVCache
from offhook.pipeline.engines.shared.qwen3.sampling import Draw

THREADS = 256
WARPS = 8
LEAST_PROGRAMS, MOST_PROGRAMS = 64, 128


MPS_ENABLED = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED in cuda.h."""


def is_shared(device: torch.device) -> bool:
    """Returns whether kernels of other processes may run at the same time as ours, under CUDA MPS;
    True if the driver does not tell."""
    index = torch.cuda.current_device() if device.index is None else device.index
    enabled = ctypes.c_int(0)
    driver = ctypes.CDLL("libcuda.so.1")
    failed = driver.cuDeviceGetAttribute(ctypes.byref(enabled), MPS_ENABLED, index)
    return bool(failed or enabled.value)


def programs(device: torch.device) -> int:
    """Returns the number of persistent blocks: the largest power of two up to the number of
    multiprocessors."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return 1 << min(count, MOST_PROGRAMS).bit_length() - 1


def fits(body: Body) -> bool:
    """Returns whether the kernels support this body in its current state and place."""
    c = body.config
    weight = body.norm
    if weight.device.type != "cuda" or weight.dtype != torch.bfloat16:
        return False
    blocks = programs(weight.device)
    layers: list[Any] = list(body.layers)
    return (
        hasattr(torch.cuda, "_compile_kernel")
        and torch.cuda.get_device_capability(weight.device) >= (8, 0)
        and blocks >= LEAST_PROGRAMS
        and not is_shared(weight.device)
        and (c.heads, c.kv_heads, c.head_dim) == (16, 8, 128)
        and c.hidden_size in (1024, 2048)
        and c.ffn % (blocks * WARPS) == 0
        and all(layer.qkv.codes is None for layer in layers)
    )


@functools.cache
def _compiled(name: str, **sizes: int) -> Any:
    source = files("offhook.pipeline.engines.shared.qwen3").joinpath("step.cu").read_text("utf-8")
    defined = "".join(f"#define {key} {value}\n" for key, value in sizes.items())
    # Otherwise NVRTC takes a lambda for a host function.
    options = ["--device-as-default-execution-space"]
    return torch.cuda._compile_kernel(defined + source, name, nvcc_options=options)


class Stack:
    """The layers of a body with each kind of weight in one tensor [layers, ...]. The layers' own
    parameters become views of these, so nothing is in memory twice."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.weights = (
            self._stacked("attention_norm"),
            self._stacked("qkv", "weight"),
            self._stacked("q_norm"),
            self._stacked("k_norm"),
            self._stacked("out", "weight"),
            self._stacked("ffn_norm"),
            self._stacked("gate_up", "weight"),
            self._stacked("down", "weight"),
            body.norm,
        )
        c = body.config
        self.device = body.norm.device
        self.programs = programs(self.device)
        # Room for two rows: the predictor starts with two.
        self.row = self._new(4 * c.hidden_size)
        self.heads = self._new(2 * (c.heads + 2 * c.kv_heads) * c.head_dim)
        self.wide = self._new(2 * c.ffn)
        self.arrived = self._new(1, dtype=torch.int64)
        self.scalars = torch.tensor([c.head_dim**-0.5, c.rms_eps], device=self.device)

    def _stacked(self, name: str, part: str = "") -> Tensor:
        owners = [getattr(layer, name) if part else layer for layer in self.body.layers]
        whole = torch.stack([getattr(owner, part or name) for owner in owners])
        for owner, one in zip(owners, whole, strict=True):
            setattr(owner, part or name, torch.nn.Parameter(one, requires_grad=False))
        return whole

    def _new(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _sizes(self) -> dict[str, int]:
        c = self.body.config
        return {
            "PROGRAMS": self.programs,
            "LAYERS": c.layers,
            "HIDDEN": c.hidden_size,
            "FFN": c.ffn,
        }

    def _launch(self, kernel: Any, *arguments: Tensor) -> None:
        kernel((self.programs, 1, 1), (THREADS, 1, 1), list(arguments))


class BodyStep(Stack):
    """Runs a body for a single row."""

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        c = body.config
        splits = self.programs // c.kv_heads
        self._parts = self._new(c.heads * splits * c.head_dim, dtype=torch.float32)
        self._sums = self._new(c.heads * splits * 2, dtype=torch.float32)

    def __call__(self, x: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """`Body.forward` of one row [1, hidden], which is one sequence; returns [1, hidden]."""
        out = torch.empty_like(x)
        body = self.body
        self._launch(
            _compiled("body_step", **self._sizes(), PAGE=cache.k.shape[2]),
            *(x, out, body.cos, body.sin, batch.positions, cache.k, cache.v, batch.page_table),
            *(batch.kv_lengths, batch.slots, *self.weights, self.row, self.heads, self._parts),
            *(self._sums, self.wide, self.arrived, cache.layer_stride, self.scalars),
        )
        return out


class Predictor(Stack):
    """Runs the code predictor for a single row."""

    def __init__(
        self,
        body: Body,
        projection: torch.nn.Linear | None,
        first_table: Tensor,
        tables: Tensor,
        heads: Tensor,
    ) -> None:
        """projection: of the talker's hidden state. first_table: [rows, hidden], of the first
        codebook's codes. tables: [at least 14, rows, hidden], of those of the codebooks after it.
        heads: [15, codes, hidden]."""
        super().__init__(body)
        c = body.config
        self._projection = projection
        self._first_table, self._tables, self._code_heads = first_table, tables, heads
        self._steps, codes = heads.shape[0] + 1, heads.shape[1]
        talker = projection.in_features if projection else c.hidden_size
        self._kernel = _compiled(
            "predict",
            **self._sizes(),
            STEPS=self._steps,
            CODES=codes,
            TALKER=talker,
            **({"PROJECT": 1} if projection else {}),
        )
        self._start = self._new(c.hidden_size)
        self._shares = self._new(2 * c.kv_heads * c.hidden_size, dtype=torch.float32)
        self._logits = self._new(codes)
        self._cached = self._new(2 * c.layers * self._steps * c.kv_heads * c.head_dim)
        self._stride = torch.tensor([tables.stride(0)], device=self.device)

    def __call__(self, hidden: Tensor, first: Tensor, draw: Draw) -> Tensor:
        """Returns the codes of one frame, int64 [1, codebooks], from the talker's hidden state [1,
        talker's hidden] and the first code, int64 [1]."""
        codes = torch.empty((1, self._steps), dtype=torch.int64, device=hidden.device)
        body, projection = self.body, self._projection
        weight, bias = (projection.weight, projection.bias) if projection else (hidden, hidden)
        self._launch(
            self._kernel,
            *(hidden, first, codes, draw.seeds, draw.frames, draw.predictor_temperature),
            *(draw.predictor_top_k, body.cos, body.sin, weight, bias, self._first_table),
            *(self._tables, self._code_heads, *self.weights, self._start, self.row, self.heads),
            *(self._shares, self.wide, self._logits, self._cached, self.arrived, self._stride),
            self.scalars,
        )
        return codes


def fuse_steps(body: Body) -> None:
    """Lets a single row use `BodyStep` if it is supported."""
    if body.alone is None and fits(body):
        body.alone = BodyStep(body)


def predictor_fits(body: Body, heads: Tensor) -> bool:
    """Returns whether `Predictor` supports this body and heads [15, codes, hidden]."""
    return fits(body) and body.config.hidden_size == 1024 and tuple(heads.shape[:2]) == (15, 2048)
