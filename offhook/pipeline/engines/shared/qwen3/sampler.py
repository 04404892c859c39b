"""Samples codes with Triton kernels on a GPU and in plain torch elsewhere; see `sampling`."""

from torch import Tensor

from offhook.pipeline.engines.shared.qwen3 import sampling
from offhook.pipeline.engines.shared.qwen3.sampling import Draw


def sample_first(logits: Tensor, draw: Draw, end: int) -> Tensor:
    """Samples first codes, int64 [B], from logits [B, codes] (fp32 or bf16). `end` is the
    end-of-stream code; see MIN_FRAMES and RESERVED."""
    if logits.is_cuda:
        from offhook.pipeline.engines.shared.qwen3 import triton_sampling

        return triton_sampling.sample_first(logits, draw, end)
    return sampling.sample_first_reference(logits, draw, end)


def sample(logits: Tensor, draw: Draw, codebook: int) -> Tensor:
    """Samples codes of a later codebook, int64 [B], from logits [B, codes] (fp32 or bf16)."""
    if logits.is_cuda:
        from offhook.pipeline.engines.shared.qwen3 import triton_sampling

        return triton_sampling.sample(logits, draw, codebook)
    return sampling.sample_reference(logits, draw, codebook)
