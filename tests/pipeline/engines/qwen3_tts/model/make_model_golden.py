"""Makes data/qwen3_tts.npz: what the published package says with small random weights.

    python -m tests.pipeline.engines.qwen3_tts.model.make_model_golden

in an environment with qwen-tts 0.1.1 (transformers 4.57.3). The package draws with
torch.multinomial, which is given the numbers of `sampling` here; logits are taken where it draws.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.shared.qwen3 import sampling
from tests.pipeline.engines.qwen3_tts.model import tiny_tts

GOLDEN = Path(__file__).parent / "data" / "qwen3_tts.npz"
FRAMES = 17
"""At most, of each case."""
LOGIT_FRAMES = 3
LOGIT_CODES = 96
"""Of which logits are kept; those of first codes behind them are never drawn."""
ROLE = [3, 4, 5]
"""What stands for "<|im_start|>assistant\\n" before the text."""


@dataclass(frozen=True)
class Case:
    config: TtsConfig
    seed: int
    text: list[int]
    language: str = "auto"
    speaker: str = ""
    instructions: list[int] | None = None
    whole: bool = False
    """The text goes in before the sound: `non_streaming_mode`, of which named and described voices
    are spoken with unless otherwise said."""
    voice: list[float] | None = None
    """A speaker's vector."""
    reference: list[int] | None = None
    """Text of a recording, and..."""
    reference_codes: list[list[int]] | None = None
    """... its frames."""


def codes_of(seed: int, frames: int) -> list[list[int]]:
    frame = torch.arange(frames * 16).view(frames, 16)
    return ((frame * 7919 + seed) % tiny_tts.CODES).tolist()


VOICE = [((i * 37) % 29 - 14) / 10 for i in range(tiny_tts.WIDE.talker.hidden_size)]
CASES = {
    "named": Case(tiny_tts.CONFIG, 11, [20, 21, 22, 23, 24], "english", "ann"),
    "dialect": Case(tiny_tts.CONFIG, 2, [30], "auto", "eric"),
    "named, whole text": Case(
        tiny_tts.CONFIG, 17, list(range(20, 32)), "english", "ann", whole=True
    ),
    "described, whole text": Case(
        tiny_tts.WIDE, 18, list(range(40, 45)), instructions=[60, 61, 62], whole=True
    ),
    "described": Case(tiny_tts.WIDE, 13, list(range(40, 52)), instructions=[60, 61, 62]),
    "cloned": Case(tiny_tts.WIDE, 14, [70, 71, 72, 73], "english", voice=VOICE),
    "recorded, text left": Case(
        tiny_tts.WIDE, 15, [70, 71, 72, 73], voice=VOICE,
        reference=[80, 81, 82, 83], reference_codes=codes_of(3, 5),
    ),
    "recorded, text spent": Case(
        tiny_tts.WIDE, 16, [70, 71], "chinese", voice=VOICE,
        reference=[80, 81], reference_codes=codes_of(4, 9),
    ),
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    golden = {}
    for name, case in CASES.items():
        codes, first_logits, logits, ended = say(case)
        sys.stdout.write(f"{name}: {len(codes)} frames{', ended' if ended else ''}\n")
        golden |= {
            f"{name}/codes": codes.numpy().astype(np.uint8),
            f"{name}/first": first_logits[:LOGIT_FRAMES, :LOGIT_CODES].numpy(),
            f"{name}/others": logits[:LOGIT_FRAMES].numpy(),
            f"{name}/ended": np.array(ended),
        }
    np.savez_compressed(GOLDEN, **golden)


def say(case: Case) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The frames [F, 16], the logits of first codes [F + 1, codes] and of the others
    [F, 15, codes], and whether the last of the first codes ended it."""
    model = official(case.config)
    drawn: list[int] = []
    first: list[Tensor] = []
    others: list[Tensor] = []
    heads = [(head, others) for head in model.talker.code_predictor.lm_head]
    for head, kept in [(model.talker.codec_head, first), *heads]:
        head.register_forward_hook(lambda *of, kept=kept: kept.append(of[2][0, -1].clone()))
    g = case.config.generation
    with patch("torch.multinomial", drawing(case.seed, drawn)), torch.no_grad():
        frames, _ = model.generate(
            **inputs(case),
            max_new_tokens=FRAMES + 1,
            temperature=g.temperature,
            top_k=g.top_k,
            repetition_penalty=g.penalty,
            subtalker_temperature=g.predictor_temperature,
            subtalker_top_k=g.predictor_top_k,
        )
    codes = frames[0]
    assert codes.flatten().tolist() == drawn[: 16 * len(codes)]
    ended = drawn[16 * len(codes)] == case.config.codec_eos
    return codes, torch.stack(first), torch.stack(others).unflatten(0, (-1, 15)), ended


def drawing(seed: int, drawn: list[int]) -> Callable[[Tensor, int], Tensor]:
    """For torch.multinomial: with the numbers of `sampling`; the codes are added to `drawn`."""

    def multinomial(chances: Tensor, num_samples: int) -> Tensor:
        frame, codebook = divmod(len(drawn), 16)
        numbers = sampling.uniform(
            torch.tensor([seed]), torch.tensor([frame]), codebook, chances.shape[1]
        )
        code = (chances.log() + sampling.gumbel(numbers)).argmax(1, keepdim=True)
        drawn.append(int(code))
        return code

    return multinomial


def inputs(case: Case) -> dict[str, Any]:
    def ids(tokens: list[int]) -> Tensor:
        return torch.tensor([tokens])

    given: dict[str, Any] = {
        "input_ids": [ids([*ROLE, *case.text, 6, 5, *ROLE])],
        "languages": [case.language],
        "speakers": [case.speaker],
        "non_streaming_mode": case.whole,
    }
    if case.instructions:
        given["instruct_ids"] = [ids(case.instructions)]
    if case.voice:
        recorded = case.reference_codes is not None
        given["voice_clone_prompt"] = {
            "ref_code": [torch.tensor(case.reference_codes)] if recorded else None,
            "ref_spk_embedding": [torch.tensor(case.voice)],
            "x_vector_only_mode": [not recorded],
            "icl_mode": [recorded],
        }
    if case.reference:
        given["ref_ids"] = [ids([*ROLE, *case.reference, 6, 5])]
    return given


def official(config: TtsConfig) -> Any:
    """The package's model, its talker with the weights of `tiny_tts`."""
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    model = Qwen3TTSForConditionalGeneration._from_config(
        Qwen3TTSConfig(**tiny_tts.config_json(config)), attn_implementation="eager"
    ).eval()
    weights = tiny_tts.tensors(config)
    named = {n.removeprefix("talker."): w for n, w in weights.items() if n.startswith("talker.")}
    model.talker.load_state_dict(named, strict=True)  # the names are those of the package
    return model


if __name__ == "__main__":
    import transformers  # noqa: F401  (looks whether the modules below are there)

    for missing in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules[missing] = MagicMock()  # imported by the package, used by its other codec
    main()
