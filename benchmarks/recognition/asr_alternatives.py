"""What the engine could do otherwise, timed against what it does: attention, compilers, runtimes.

Rows for `asr_settings`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.recognition.asr_timing import (
    Bench,
    Row,
    Skip,
    captured,
    decode_step,
    heads,
    rounded,
    windows,
)
from offhook.pipeline.engines.qwen3_asr.model.model import AudioEncoder, EncoderLayer
from offhook.pipeline.engines.qwen3_asr.runner import WINDOW_TOKENS
from offhook.pipeline.engines.shared.qwen3 import attention
from offhook.pipeline.engines.shared.qwen3.body import Batch, DecoderLayer

# --- attention ---


def attention_sdpa(bench: Bench) -> Iterator[Row]:
    """Our kernel (on) against torch's own flash attention, on windows of one length."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, starts = heads(bench, [WINDOW_TOKENS] * bench.streams)
    apart = (bench.streams, WINDOW_TOKENS)
    dense = [x.unflatten(0, apart).transpose(1, 2) for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5

    def theirs() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(dense[0], dense[1], dense[2], scale=scale)

    ours = lambda: attention.window_attention(q, k, v, starts, WINDOW_TOKENS, scale)  # noqa: E731
    yield bench.row(
        f"{bench.streams} windows of {WINDOW_TOKENS}",
        bench.device_time(ours, 20),
        bench.device_time(theirs, 20),
        difference=relative(theirs().transpose(1, 2).flatten(0, 1), ours()),
    )


def attention_varlen(bench: Bench) -> Iterator[Row]:
    """Our kernel (on) against torch's flash attention on packed windows of any length."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise Skip(f"torch {torch.__version__} has no varlen_attn") from error
    yield from ragged(bench, varlen_attn)


def attention_flash_attn(bench: Bench) -> Iterator[Row]:
    """Our kernel (on) against the flash-attn package, on packed windows of any length."""
    if find_spec("flash_attn") is None:
        raise Skip("flash-attn is not installed")
    flash_attn = import_module("flash_attn")
    yield from ragged(bench, flash_attn.flash_attn_varlen_func)


def ragged(bench: Bench, varlen: Callable[..., Any]) -> Iterator[Row]:
    lengths = np.random.default_rng(0).integers(13, WINDOW_TOKENS + 1, bench.streams).tolist()
    q, k, v, starts = heads(bench, lengths)
    most, scale = WINDOW_TOKENS, q.shape[-1] ** -0.5
    ours = lambda: attention.window_attention(q, k, v, starts, most, scale)  # noqa: E731
    theirs = lambda: varlen(q, k, v, starts, starts, most, most)  # noqa: E731
    yield bench.row(
        f"{bench.streams} windows of 13 to {most}, {sum(lengths)} tokens",
        bench.device_time(ours, 20),
        bench.device_time(theirs, 20),
        difference=relative(theirs(), ours()),
    )


# --- torch.compile ---


def compiled(bench: Bench) -> Iterator[Row]:
    """Our layers (off) against plain ones compiled by torch (on), each in a CUDA graph."""
    yield from compiled_in(bench, "default")


def compiled_autotuned(bench: Bench) -> Iterator[Row]:
    yield from compiled_in(bench, "max-autotune-no-cudagraphs")


def compiled_in(bench: Bench, mode: str) -> Iterator[Row]:
    encoder: Any = bench.model.encoder.layers[0]
    x, starts = windows(bench, [WINDOW_TOKENS] * bench.streams)
    dense = x.view(bench.streams, WINDOW_TOKENS, -1)
    theirs = torch.compile(dense_encoder_layer, mode=mode, dynamic=False)
    began = time.perf_counter()
    theirs(encoder, dense)
    took = time.perf_counter() - began
    yield bench.row(
        f"encoder layer, {len(x)} tokens, {mode}",
        bench.device_time(lambda: theirs(encoder, dense)),
        bench.device_time(lambda: encoder(x.clone(), starts, WINDOW_TOKENS)),
        compile_s=round(took, 1),
    )
    layer: Any = bench.model.decoder.layers[0]
    given = decode_step(bench)
    decode = torch.compile(plain_decoder_layer, mode=mode, dynamic=False)
    began = time.perf_counter()
    decode(layer, *given)
    took = time.perf_counter() - began
    yield bench.row(
        f"decoder layer, one token of {bench.streams} streams, {mode}",
        bench.device_time(lambda: decode(layer, *given)),
        bench.device_time(lambda: layer(given[0].clone(), *given[1:])),
        compile_s=round(took, 1),
    )


def dense_encoder_layer(layer: EncoderLayer, x: Tensor) -> Tensor:
    """`EncoderLayer` in plain torch, out of place, on windows of one length: [W, L, d_model]."""
    wide = F.linear(normed(layer.attention_norm, x), layer.qkv.weight, layer.qkv.bias)
    q, k, v = wide.unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    heard = F.scaled_dot_product_attention(q, k, v, scale=layer.scale)
    x = x + F.linear(heard.transpose(1, 2).flatten(2), layer.out.weight, layer.out.bias)
    wide = F.gelu(F.linear(normed(layer.ffn_norm, x), layer.fc1.weight, layer.fc1.bias))
    return x + F.linear(wide, layer.fc2.weight, layer.fc2.bias)


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def plain_decoder_layer(
    layer: DecoderLayer,
    x: Tensor,
    turn: tuple[Tensor, Tensor],
    batch: Batch,
    pages: tuple[Tensor, Tensor],
) -> Tensor:
    """`DecoderLayer` in plain torch, out of place; the cache and the attention are ours."""
    y = attention.rms_norm_reference(x, layer.attention_norm, layer.eps)
    kv_heads, channels = pages[0].shape[2:]
    qkv = F.linear(y, layer.qkv.weight).unflatten(1, (-1, channels))
    q, k, v = qkv.tensor_split((-2 * kv_heads, -kv_heads), 1)
    q, k = attention.qk_norm_rope(q, k, layer.q_norm, layer.k_norm, *turn, layer.eps)
    heard = attend_pages(q, k, v, batch, pages, layer.scale)
    x = x + F.linear(heard.flatten(1), layer.out.weight)
    y = attention.rms_norm_reference(x, layer.ffn_norm, layer.eps)
    wide = attention.silu_mul_reference(F.linear(y, layer.gate_up.weight))
    return x + F.linear(wide, layer.down.weight)


@torch.compiler.disable
def attend_pages(
    q: Tensor, k: Tensor, v: Tensor, batch: Batch, pages: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    attention.write_kv(k, v, *pages, batch.slots)
    of = (batch.page_table, batch.q_starts, batch.kv_lengths)
    return attention.paged_attention(q, *pages, *of, batch.max_q, scale)


# --- the encoder by ONNX Runtime ---


def onnx_runtime(bench: Bench) -> Iterator[Row]:
    """ONNX Runtime (on) against the encoder as it is served (off), on full windows."""
    provider = "CUDAExecutionProvider" if bench.cuda else "CPUExecutionProvider"
    yield from exported(bench, provider)


def tensorrt(bench: Bench) -> Iterator[Row]:
    """The same through TensorRT."""
    yield from exported(bench, "TensorrtExecutionProvider")


class DenseEncoder(nn.Module):
    """`AudioEncoder.forward` over windows of one length, as exporters know it."""

    def __init__(self, encoder: AudioEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """[W, 104, d_model] to [W, 104, output_dim]."""
        layers: Any = self.encoder.layers
        for layer in layers:
            x = dense_encoder_layer(layer, x)
        e = self.encoder
        y: Tensor = e.proj2(F.gelu(e.proj1(e.post_norm(x))))
        return y


def exported(bench: Bench, provider: str) -> Iterator[Row]:
    missing = [n for n in ("onnxruntime", "onnx", "onnxscript") if find_spec(n) is None]
    if missing:
        raise Skip(f"not here: {', '.join(missing)} not installed")
    import onnxruntime

    if provider not in onnxruntime.get_available_providers():
        raise Skip(f"not here: this ONNX Runtime has no {provider}")
    x, starts = windows(bench, [WINDOW_TOKENS] * bench.streams)
    half = torch.float16 if bench.cuda else torch.float32
    dense = x.view(bench.streams, WINDOW_TOKENS, -1).to(half)
    encoder = DenseEncoder(deepcopy(bench.model.encoder).to(half)).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "encoder.onnx")
        torch.onnx.export(
            encoder, (dense,), path, input_names=["x"], output_names=["y"], dynamo=True,
            verbose=False,
        )  # fmt: skip
        session = onnxruntime.InferenceSession(path, providers=[provider])
    if provider not in session.get_providers():
        raise Skip(f"not here: {provider} does not start")
    out = torch.empty(*dense.shape[:2], bench.config.encoder.output_dim, device=x.device).to(half)
    binding = session.io_binding()
    for bind, name, tensor in ((binding.bind_input, "x", dense), (binding.bind_output, "y", out)):
        kind = np.float16 if half == torch.float16 else np.float32
        bind(name, x.device.type, 0, kind, tuple(tensor.shape), tensor.data_ptr())
    encode = lambda: bench.model.encoder(x, starts, WINDOW_TOKENS)  # noqa: E731
    ours = captured(encode).replay if bench.cuda else encode
    session.run_with_iobinding(binding)
    yield bench.row(
        f"encoder, {bench.streams} windows of {WINDOW_TOKENS}, {provider}",
        bench.wall(lambda: session.run_with_iobinding(binding)),
        bench.wall(ours),
        difference=relative(out.flatten(0, 1), encode()),
    )


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return rounded((one.float() - other.float()).abs().max() / other.abs().max())
