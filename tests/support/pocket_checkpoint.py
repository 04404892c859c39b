"""Tiny random Pocket TTS checkpoints in the layout of Kyutai's repository on the hub: with all of
its tensors, a tokenizer that works, and voices. What they say is noise of a sensible level."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

PIECES = 200
LATENT = 32
RATIOS = (6, 5, 4)
VOICES = {"alba": 9, "marius": 6, "jean": 5, "estelle": 7}
"""Positions of each voice; jean is one that must not be listed."""
TEXT = [
    "Hello there, how are you today? I am fine; thank you. What can I do for you this morning?",
    "The cat sat on the mat, isn't it? Was die Katze auf der Matte tat, das weiß nur sie!",
    "Your order number is 0123456789. (One moment: please wait) – it takes a while…",
    "We are open from nine until seventeen hours, except on Sunday and on public holidays.",
    "Bonjour, je voudrais réserver une table pour quatre personnes; merci, à demain!",
    "JQXZ VWKY GPFB MLRU NDCA EIOHS",
] * 4

Tensors = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class Tiny:
    """Sizes of a checkpoint."""

    width: int = 128
    queries: int = 128
    kv: int = 128
    ffn: int = 128
    layers: int = 2
    bottleneck: int = 0
    rank: int = 0
    times: int = 2
    flow: int = 32
    depth: int = 2
    decoder: int = 64
    decoder_layers: int = 2
    filters: int = 4
    kernel: int = 7
    sentencepiece: bool = False


LARGE = Tiny()
SMALL = Tiny(
    bottleneck=16, times=0, decoder_layers=3, filters=3, kernel=3, sentencepiece=True, layers=3
)
SHARED_HEADS = replace(SMALL, width=96, queries=256, kv=128, rank=16)
SMALLEST = replace(SMALL, width=48, queries=192, kv=64, rank=8, ffn=40)


def tiny_of(name: str) -> Tiny:
    """Returns a network of the kind that the model of this name on the hub has."""
    kinds = {"18m": SMALL, "7m": SHARED_HEADS, "2m": SMALLEST}
    found = (tiny for size, tiny in kinds.items() if f"_{size}_" in name)
    return next(found, replace(LARGE, layers=3) if name.endswith("_24l") else LARGE)


def write(root: Path, name: str = "english", seed: int = 1, end_logit: float | None = 10.0) -> Path:
    """Writes languages/NAME below a repository's folder, and returns that folder.

    `end_logit` is the logit of the end in each frame: with 10 a clause has 9 frames (11 if it has
    few words), with -10 as many as its length allows. None: random, about the threshold.
    """
    tiny = tiny_of(name)
    folder = root / "languages" / name
    (folder / "embeddings").mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    weights = dict(_tensors(tiny, generator))
    last = weights["flow_lm.out_eos.weight"]
    if end_logit is None:
        weights["flow_lm.out_eos.bias"] = torch.tensor([-5.0 if tiny.times else -2.0])
    else:
        last.zero_()
        weights["flow_lm.out_eos.bias"] = torch.tensor([end_logit])
    save_file(weights, folder / "model.safetensors")
    if tiny.sentencepiece:
        (folder / "tokenizer.model").write_bytes(_sentencepiece())
    else:
        _json_tokenizer(folder / "tokenizer.json")
    for voice, positions in VOICES.items():
        save_file(
            dict(_voice(tiny, positions, generator)), folder / f"embeddings/{voice}.safetensors"
        )
    return folder


def _tensors(t: Tiny, generator: torch.Generator) -> Tensors:
    def random(*shape: int, scale: float = 1.0) -> Tensor:
        fan_in = 1
        for size in shape[1:]:
            fan_in *= size
        tensor: Tensor = torch.randn(shape, generator=generator) * (scale / math.sqrt(fan_in))
        return tensor

    def norm(name: str, width: int) -> Tensors:
        yield f"{name}.weight", 1 + 0.1 * torch.randn(width, generator=generator)
        yield f"{name}.bias", 0.1 * torch.randn(width, generator=generator)

    def linear(name: str, outputs: int, inputs: int) -> Tensors:
        yield f"{name}.weight", random(outputs, inputs)
        yield f"{name}.bias", 0.1 * torch.randn(outputs, generator=generator)

    def convolution(name: str, outputs: int, inputs: int, kernel: int) -> Tensors:
        yield f"{name}.weight", random(outputs, inputs, kernel)
        yield f"{name}.bias", 0.1 * torch.randn(outputs, generator=generator)

    def layer(name: str, width: int, queries: int, kv: int, ffn: int) -> Tensors:
        yield f"{name}.self_attn.in_proj.weight", random(queries + 2 * kv, width)
        yield f"{name}.self_attn.out_proj.weight", random(width, queries)
        yield f"{name}.linear1.weight", random(ffn, width)
        yield f"{name}.linear2.weight", random(width, ffn)
        yield from norm(f"{name}.norm1", width)
        yield from norm(f"{name}.norm2", width)

    lm = "flow_lm"
    yield f"{lm}.emb_std", 1 + 0.1 * torch.rand(LATENT, generator=generator)
    yield f"{lm}.emb_mean", 0.1 * torch.randn(LATENT, generator=generator)
    yield f"{lm}.bos_emb", torch.randn(LATENT, generator=generator)
    yield f"{lm}.bos_before_voice", random(1, 1, t.width)
    yield f"{lm}.speaker_proj_weight", random(t.width, LATENT)
    yield f"{lm}.input_linear.weight", random(t.width, LATENT)
    embedding = torch.randn(PIECES + 1, t.rank or t.width, generator=generator)
    yield f"{lm}.conditioner.embed.weight", embedding
    if t.rank:
        yield f"{lm}.conditioner.proj.weight", random(t.width, t.rank)
    for i in range(t.layers):
        yield from layer(f"{lm}.transformer.layers.{i}", t.width, t.queries, t.kv, t.ffn)
    yield from norm(f"{lm}.out_norm", t.width)
    if t.bottleneck:
        yield f"{lm}.z_proj.weight", random(t.bottleneck, t.width)
    condition = t.bottleneck or t.width
    yield f"{lm}.out_eos.weight", random(1, condition)
    head = f"{lm}.flow_net"
    for i in range(t.times):
        frequencies = torch.exp(-torch.log(torch.tensor(10_000.0)) * torch.arange(128) / 128)
        yield f"{head}.time_embed.{i}.freqs", frequencies
        yield from linear(f"{head}.time_embed.{i}.mlp.0", t.flow, 256)
        yield from linear(f"{head}.time_embed.{i}.mlp.2", t.flow, t.flow)
        yield f"{head}.time_embed.{i}.mlp.3.alpha", torch.ones(t.flow)
    yield from linear(f"{head}.cond_embed", t.flow, condition)
    yield from linear(f"{head}.input_proj", t.flow, LATENT)
    for i in range(t.depth):
        block = f"{head}.res_blocks.{i}"
        yield from norm(f"{block}.in_ln", t.flow)
        yield from linear(f"{block}.mlp.0", t.flow, t.flow)
        yield from linear(f"{block}.mlp.2", t.flow, t.flow)
        yield from linear(f"{block}.adaLN_modulation.1", 3 * t.flow, t.flow)
    yield from linear(f"{head}.final_layer.linear", LATENT, t.flow)
    yield from linear(f"{head}.final_layer.adaLN_modulation.1", 2 * t.flow, t.flow)

    yield "mimi.quantizer.output_proj.weight", random(t.decoder, LATENT, 1)
    yield "mimi.upsample.convtr.convtr.weight", random(t.decoder, 1, 32, scale=4)
    yield "mimi.downsample.conv.conv.weight", random(LATENT, t.decoder, 32)
    for side, layers in (("encoder", 1), ("decoder", t.decoder_layers)):
        for i in range(layers):
            name = f"mimi.{side}_transformer.transformer.layers.{i}"
            yield from layer(name, t.decoder, t.decoder, t.decoder, 2 * t.decoder)
            yield f"{name}.layer_scale_1.scale", 0.3 * torch.rand(t.decoder, generator=generator)
            yield f"{name}.layer_scale_2.scale", 0.3 * torch.rand(t.decoder, generator=generator)
    channels = t.filters
    model = "mimi.encoder.model"
    yield from convolution(f"{model}.0.conv", channels, 1, 7)
    for i, ratio in enumerate(reversed(RATIOS)):
        yield from convolution(f"{model}.{3 * i + 1}.block.1.conv", channels // 2, channels, 3)
        yield from convolution(f"{model}.{3 * i + 1}.block.3.conv", channels, channels // 2, 1)
        yield from convolution(f"{model}.{3 * i + 3}.conv", 2 * channels, channels, 2 * ratio)
        channels *= 2
    yield from convolution(f"{model}.{3 * len(RATIOS) + 2}.conv", t.decoder, channels, 3)
    model = "mimi.decoder.model"
    yield from convolution(f"{model}.0.conv", channels, t.decoder, t.kernel)
    for i, ratio in enumerate(RATIOS):
        half = channels // 2
        name = f"{model}.{3 * i + 2}.convtr"
        yield f"{name}.weight", random(channels, half, 2 * ratio, scale=ratio**0.5)
        yield f"{name}.bias", 0.1 * torch.randn(half, generator=generator)
        yield from convolution(f"{model}.{3 * i + 3}.block.1.conv", half // 2, half, 3)
        yield from convolution(f"{model}.{3 * i + 3}.block.3.conv", half, half // 2, 1)
        channels = half
    name = f"{model}.{3 * len(RATIOS) + 2}.conv"
    yield f"{name}.weight", random(1, channels, 3, scale=0.1)
    yield f"{name}.bias", torch.zeros(1)


def _voice(t: Tiny, positions: int, generator: torch.Generator) -> Tensors:
    for i in range(t.layers):
        name = f"transformer.layers.{i}.self_attn"
        yield f"{name}/cache", torch.randn(2, 1, positions, t.kv // 64, 64, generator=generator)
        yield f"{name}/offset", torch.tensor([positions])


def _json_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bpe.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<unk>"], show_progress=False)
    bpe.train_from_iterator(TEXT, trainer)
    assert bpe.get_vocab_size() == PIECES
    bpe.save(str(path))


def _sentencepiece() -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=PIECES,
        model_type="bpe",
        minloglevel=2,
    )
    return model.getvalue()
