"""Streams of sound from codes: by the Triton kernels on a GPU, in plain torch elsewhere."""

from torch import Tensor

from offhook.pipeline.models.qwen3_tts.codec import Codec, CodecState


def stream(codec: Codec, codes: Tensor, slots: Tensor, first: Tensor, state: CodecState) -> Tensor:
    """The next frames of some streams, as `Codec.stream` computes them: fp32 [B, samples] in
    [-1, 1]. Can be captured in a CUDA graph once it has run outside one."""
    if codes.is_cuda:
        from offhook.pipeline.models.qwen3_tts import triton_codec

        return triton_codec.stream(codec, codes, slots, first, state)
    return codec.stream(codes, slots, first, state)
