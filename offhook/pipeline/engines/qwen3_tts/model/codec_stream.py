"""Decodes codes of streams with Triton kernels on a GPU and in plain torch elsewhere."""

from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.codec import Codec, CodecState


def stream(codec: Codec, codes: Tensor, slots: Tensor, first: Tensor, state: CodecState) -> Tensor:
    """Returns the next frames' audio, fp32 [B, samples] in [-1, 1]; see `Codec.stream`. It can be
    captured in a CUDA graph after one uncaptured run."""
    if codes.is_cuda:
        from offhook.pipeline.engines.qwen3_tts.model import triton_codec

        return triton_codec.stream(codec, codes, slots, first, state)
    return codec.stream(codes, slots, first, state)
