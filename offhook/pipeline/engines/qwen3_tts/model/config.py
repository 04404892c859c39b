"""Sizes, ids and voices of a Qwen3-TTS checkpoint; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from offhook.pipeline.engines.shared.qwen3.config import CODEBOOKS, DecoderConfig, require
from offhook.pipeline.speech.errors import EngineError

Kind = Literal["base", "custom_voice", "voice_design"]
"""How a model is given its voices: cloned from a recording, by name, or described in words."""


@dataclass(frozen=True)
class Generation:
    """Default sampling parameters."""

    temperature: float = 0.9
    top_k: int = 50
    penalty: float = 1.05
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50

    @staticmethod
    def from_json(c: Mapping[str, Any]) -> "Generation":
        """Parses generation_config.json. Raises EngineError if it requires something that
        `sampling` does not support."""
        for name in ("top_p", "do_sample", "subtalker_top_p", "subtalker_dosample"):
            if c.get(name, 1) != 1:
                value = True if "sample" in name else 1.0
                raise EngineError(
                    f"generation_config.json: {name} is {c[name]!r}, but only {value!r} "
                    "is supported"
                )
        return Generation(
            temperature=c.get("temperature", Generation.temperature),
            top_k=c.get("top_k", Generation.top_k),
            penalty=c.get("repetition_penalty", Generation.penalty),
            predictor_temperature=c.get("subtalker_temperature", Generation.predictor_temperature),
            predictor_top_k=c.get("subtalker_top_k", Generation.predictor_top_k),
        )


@dataclass(frozen=True)
class TtsConfig:
    talker: DecoderConfig
    predictor: DecoderConfig
    kind: Kind = "base"
    size: str = ""
    """"0b6" or "1b7"; a checkpoint with other sizes has its own value."""
    codec_vocab: int = 3072
    """First codes, followed by the talker's control codes."""
    codebook_size: int = 2048
    codebooks: int = CODEBOOKS
    text_vocab: int = 151936
    text_hidden: int = 2048
    """Width of the text embedding before its projection."""
    codec_bos: int = 2149
    codec_eos: int = 2150
    codec_pad: int = 2148
    think: int = 2154
    nothink: int = 2155
    think_bos: int = 2156
    think_eos: int = 2157
    tts_bos: int = 151672
    tts_eos: int = 151673
    tts_pad: int = 151671
    """The last three ids are text tokens, the seven before them codes."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """English names in lower case ("german"), and dialects, to codes."""
    speakers: Mapping[str, int] = field(default_factory=dict)
    """Names in lower case to codes."""
    dialects: Mapping[str, str | bool] = field(default_factory=dict)
    """Dialect of a speaker, a key of `languages`; False: none."""
    generation: Generation = Generation()

    @staticmethod
    def from_json(
        config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "TtsConfig":
        """Parses config.json and generation_config.json. Raises EngineError for another model or
        variant."""
        if config.get("model_type") != "qwen3_tts":
            raise EngineError(
                f"config.json is of a {config.get('model_type')!r} model, not of Qwen3-TTS"
            )
        require(config, "tokenizer_type", "qwen3_tts_tokenizer_12hz")
        try:
            return _config(config, config["talker_config"], Generation.from_json(generation or {}))
        except KeyError as error:
            raise EngineError(f"config.json of Qwen3-TTS lacks {error.args[0]!r}") from error

    @property
    def code_counts(self) -> tuple[int, ...]:
        """Returns the number of codes of each codebook."""
        return (self.codec_vocab, *[self.codebook_size] * (self.codebooks - 1))


def _config(top: Mapping[str, Any], c: Mapping[str, Any], generation: Generation) -> TtsConfig:
    kind = top["tts_model_type"]
    if kind not in get_args(Kind):
        raise EngineError(f"config.json: tts_model_type {kind!r} is not known")
    p = c["code_predictor_config"]
    for part in (c, p):
        require(part, "num_code_groups", CODEBOOKS)
    return TtsConfig(
        talker=DecoderConfig.from_json(c),
        predictor=DecoderConfig.from_json(p),
        kind=cast(Kind, kind),
        size=top.get("tts_model_size") or "",
        codec_vocab=c["vocab_size"],
        codebook_size=p["vocab_size"],
        text_vocab=c["text_vocab_size"],
        text_hidden=c["text_hidden_size"],
        codec_bos=c["codec_bos_id"],
        codec_eos=c["codec_eos_token_id"],
        codec_pad=c["codec_pad_id"],
        think=c["codec_think_id"],
        nothink=c["codec_nothink_id"],
        think_bos=c["codec_think_bos_id"],
        think_eos=c["codec_think_eos_id"],
        tts_bos=top["tts_bos_token_id"],
        tts_eos=top["tts_eos_token_id"],
        tts_pad=top["tts_pad_token_id"],
        languages=c.get("codec_language_id") or {},
        speakers=c.get("spk_id") or {},
        dialects=c.get("spk_is_dialect") or {},
        generation=generation,
    )


LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "spanish": 2054,
    "japanese": 2058,
    "french": 2061,
    "korean": 2064,
    "russian": 2069,
    "italian": 2070,
    "portuguese": 2071,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
DIALECTS: dict[str, str | bool] = {
    **dict.fromkeys(SPEAKERS, False),
    "eric": "sichuan_dialect",
    "dylan": "beijing_dialect",
}
_SMALL = DecoderConfig(1024, 3072, layers=28, heads=16, kv_heads=8, head_dim=128)
_LARGE = DecoderConfig(2048, 6144, layers=28, heads=16, kv_heads=8, head_dim=128)
_VOICES = TtsConfig(
    talker=_SMALL,
    predictor=replace(_SMALL, layers=5),
    kind="custom_voice",
    languages=LANGUAGES,
    speakers=SPEAKERS,
    dialects=DIALECTS,
)
QWEN3_TTS_0_6B = replace(_VOICES, size="0b6")
QWEN3_TTS_1_7B = replace(_VOICES, size="1b7", talker=_LARGE)
