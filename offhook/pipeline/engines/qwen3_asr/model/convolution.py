"""Operations of the encoder's convolutional stem besides cuDNN.

On a GPU each function is one Triton kernel (`triton_convolution`); elsewhere it is plain torch,
which defines what the kernel must compute. Products are rounded to the type of x before the exact
GELU, which is computed in fp32.
"""

import torch.nn.functional as F
from torch import Tensor


def convolve_mel(mel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Applies a 3x3 convolution of one channel (stride 2, padding 1) and GELU.

    mel: [N, bins, frames]. weight: [C, 1, 3, 3]. Returns [N, C, bins / 2, frames / 2], rounded up,
    in channels-last memory format.
    """
    if not mel.is_cuda:
        return convolve_mel_reference(mel, weight, bias)
    from offhook.pipeline.engines.qwen3_asr.model import triton_convolution

    return triton_convolution.convolve_mel(mel, weight, bias)


def convolve_mel_reference(mel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolve_mel` as a product of its patches."""
    patches = F.pad(mel, (1, 1, 1, 1)).unfold(1, 3, 2).unfold(2, 3, 2).flatten(3)
    return F.gelu(F.linear(patches, weight.flatten(1), bias)).permute(0, 3, 1, 2)


def bias_gelu_(x: Tensor, bias: Tensor) -> Tensor:
    """Applies GELU to x plus the channel bias, in place.

    x: [N, C, H, W] in channels-last memory format. bias: [C].
    """
    if not x.is_cuda:
        return bias_gelu_reference_(x, bias)
    from offhook.pipeline.engines.qwen3_asr.model import triton_convolution

    return triton_convolution.bias_gelu_(x, bias)


def bias_gelu_reference_(x: Tensor, bias: Tensor) -> Tensor:
    return x.copy_(F.gelu(x + bias[:, None, None]))
