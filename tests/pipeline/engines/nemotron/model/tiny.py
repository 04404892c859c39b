"""Random Nemotron streaming checkpoints of some hundred kilobytes, written by transformers as those
on the hub were, with tokenizers that work."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Nemotron3_5AsrConfig,
    Nemotron3_5AsrForRNNT,
    Nemotron3_5AsrProcessor,
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingEncoderConfig,
    NemotronAsrStreamingFeatureExtractor,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
    ParakeetTokenizer,
)
from transformers.models.nemotron3_5_asr.processing_nemotron3_5_asr import DEFAULT_PROMPT_DICTIONARY

from offhook.pipeline.engines.nemotron.model.model import EncoderConfig, NemotronConfig

TEXT = ["The cat sat on the mat, isn't it? Was die Katze auf der Matte tat. 0123 <mt-SI> "] * 4
LABELS = 80
TAGS = ("<en-US>", "<de-DE>", "<sl-SL>")
"""Of languages; among the labels of the model of several."""
BLANK_BIAS = 4.0
"""The blank comes so much more easily than a label, and most frames of sound have few of those."""
ENGLISH = NemotronConfig(
    EncoderConfig(
        hidden_size=32, layers=2, heads=2, ffn=48, subsampling_channels=8, left_context=70
    ),
    vocab_size=LABELS + 1,
    blank=LABELS,
    predictor_size=24,
)
MULTILINGUAL = NemotronConfig(
    EncoderConfig(
        hidden_size=32, layers=2, heads=2, ffn=48, subsampling_channels=8, left_context=56
    ),
    vocab_size=LABELS + 1,
    blank=LABELS,
    predictor_size=24,
    lookaheads=(0, 3, 6, 13),
    prompts=128,
    prompt_size=40,
    default_prompt=101,
)
"""`languages` are those of transformers' table."""


def write(folder: Path, config: NemotronConfig = ENGLISH, seed: int = 2) -> Path:
    """As nvidia/nemotron-speech-streaming-en-0.6b, or as nvidia/nemotron-3.5-asr-streaming-0.6b
    when `config` has prompts."""
    shared: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "blank_token_id": config.blank,
        "decoder_hidden_size": config.predictor_size,
        "num_decoder_layers": config.predictor_layers,
        "max_symbols_per_step": config.max_symbols,
        "encoder_config": _encoder_config(config),
    }
    lookaheads = list(reversed(config.lookaheads))
    sound = NemotronAsrStreamingFeatureExtractor(
        feature_size=config.encoder.mel_bins,
        mel_filters_dtype="bfloat16" if config.mel_in_bf16 else "float32",
    )
    words = tokenizer(TAGS if config.prompts else ())
    kept = {"supported_num_lookahead_tokens": lookaheads}
    model: Any
    if config.prompts:
        model = Nemotron3_5AsrForRNNT(
            Nemotron3_5AsrConfig(
                **shared,
                num_prompts=config.prompts,
                prompt_intermediate_size=config.prompt_size,
                default_prompt_id=config.default_prompt,
            )
        )
        prompts = dict(config.languages) or DEFAULT_PROMPT_DICTIONARY
        processor: Any = Nemotron3_5AsrProcessor(
            sound, words, **kept, prompt_dictionary=prompts, num_prompts=config.prompts
        )
    else:
        model = NemotronAsrStreamingForRNNT(NemotronAsrStreamingConfig(**shared))
        processor = NemotronAsrStreamingProcessor(sound, words, **kept)
    _randomise(model.state_dict(), config.blank, seed)
    model.generation_config.decoder_start_token_id = config.blank
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _encoder_config(config: NemotronConfig) -> NemotronAsrStreamingEncoderConfig:
    c = config.encoder
    return NemotronAsrStreamingEncoderConfig(
        hidden_size=c.hidden_size,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        intermediate_size=c.ffn,
        conv_kernel_size=c.conv_kernel,
        num_mel_bins=c.mel_bins,
        subsampling_conv_channels=c.subsampling_channels,
        sliding_window=c.left_context + 1,
        default_num_lookahead_tokens=config.lookaheads[-1],
        attention_bias=c.attention_bias,
        convolution_bias=c.convolution_bias,
        scale_input=c.scale_input,
    )


@torch.no_grad()
def _randomise(weights: Mapping[str, torch.Tensor], blank: int, seed: int) -> None:
    """Large enough for logits that differ, and for sound and past labels that count; but what the
    prediction network keeps must fade, or it is chaos, in which rounding soon decides."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in weights.items():
        wide = tensor[0].numel() if tensor.ndim > 1 else 50
        size = 8.0 if name.startswith("decoder.") and tensor.ndim > 1 else 1.5
        size = 0.8 if "weight_hh" in name else size
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * (size / wide**0.5))
        if "norm" in name and name.endswith("weight"):
            tensor += 1
    weights["joint.head.bias"][blank] += BLANK_BIAS


def tokenizer(tags: tuple[str, ...] = ()) -> ParakeetTokenizer:
    """LABELS pieces learnt from TEXT, the tags among them; behind them a padding, whose number is
    the model's blank, and a blank that no model knows. So it is on the hub."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bpe.decoder = decoders.Metaspace(prepend_scheme="always")
    known = ["<unk>", *tags]
    trainer = trainers.BpeTrainer(vocab_size=LABELS, special_tokens=known, show_progress=False)
    bpe.train_from_iterator(TEXT, trainer)
    assert bpe.get_vocab_size() == LABELS
    words = ParakeetTokenizer(tokenizer_object=bpe, clean_up_tokenization_spaces=False)
    for more in ("<pad>", "<blank>"):
        words.add_tokens([AddedToken(more, normalized=False, special=True)])
    words.add_special_tokens({"pad_token": "<pad>", "unk_token": "<unk>"})
    assert words.convert_tokens_to_ids("<pad>") == LABELS
    return words
