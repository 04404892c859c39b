"""Makes data/prompts.json: what the published package gives its talker, position by position.

    python -m tests.pipeline.engines.qwen3_tts.make_prompts_golden

in an environment with qwen-tts 0.1.1 (transformers 4.57.3). The embeddings are such that every sum
of them can be read: one dimension for the token of text, one for the codec, one for the speaker,
and one for each of the codes of a reference.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor, nn

from tests.pipeline.engines.qwen3_tts.model import tiny_tts
from tests.pipeline.engines.qwen3_tts.model.make_model_golden import official

GOLDEN = Path(__file__).parent / "data" / "prompts.json"
TEXT, CODEC, SPEAKER, CODES = 0, 1, 2, 3
CONFIG = replace(
    tiny_tts.CONFIG,
    text_hidden=32,
    languages={"english": 72, "chinese": 73, "german": 75, "sichuan_dialect": 74},
)
ROLE = [3, 4, 5]
"""`<|im_start|>assistant\\n`; 6 is `<|im_end|>`, 7 is "user"."""
INSTRUCTIONS = [3, 7, 5, 60, 61, 6, 5]
TEXTS = {"short": [20], "long": [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]}
NAMED = [
    (speaker, language, instructions)
    for speaker in ("ann", "eric", "Eric")
    for language in ("auto", "chinese", "german")
    for instructions in (None, INSTRUCTIONS)
]
REFERENCES = [([70, 71], 5), ([70, 71, 72, 73, 74, 75], 4), ([70], 30), ([70, 71, 72, 73], 4)]
"""Words, and how many frames."""


class Stopped(Exception):
    pass


def readable() -> Any:
    """The package's model, with embeddings that can be told apart in a sum."""
    model = official(CONFIG)
    talker = model.talker
    talker.text_projection = nn.Identity()
    tables = [(talker.get_text_embeddings(), TEXT), (talker.get_input_embeddings(), CODEC)]
    tables += [(t, CODES + i) for i, t in enumerate(talker.code_predictor.get_input_embeddings())]
    for table, dimension in tables:
        table.weight.data.zero_()
        table.weight.data[:, dimension] = torch.arange(len(table.weight)) + 1
    return model


def read(x: Tensor) -> list[int]:
    """Of one position: token, codec, speaker, and 15 codes where there are any; -1: none."""
    numbers = [round(float(value)) - 1 for value in x[: CODES + 15]]
    return numbers if numbers[CODES] >= 0 else numbers[:CODES]


def prompt(model: Any, whole: bool = False, **given: Any) -> dict[str, Any]:
    def stop(**talker: Any) -> None:
        raise Stopped(talker["inputs_embeds"][0], talker["trailing_text_hidden"][0])

    with patch.object(model.talker, "generate", stop), torch.no_grad():
        try:
            model.generate(non_streaming_mode=whole, **given)
        except Stopped as stopped:
            rows, trailing = stopped.args
    return {"rows": list(map(read, rows)), "trailing": [read(x)[TEXT] for x in trailing]}


def ids(tokens: list[int]) -> Tensor:
    return torch.tensor([tokens])


def main() -> None:
    model = readable()
    speaker = torch.zeros(CONFIG.talker.hidden_size)
    speaker[SPEAKER] = 1
    cases = []
    for text in TEXTS.values():
        given: dict[str, Any] = {"input_ids": [ids([*ROLE, *text, 6, 5, *ROLE])]}
        for name, language, instructions in NAMED:
            told = {"instruct_ids": [ids(instructions) if instructions else None]}
            facts = {"speaker": name, "language": language, "instructions": bool(instructions)}
            for whole in (False, True):
                asked = {"speakers": [name], "languages": [language], **told, **given}
                made = prompt(model, whole, **asked)
                cases.append({"kind": "named", "text": text, "whole": whole, **facts, **made})
        for words, frames in [([], 0), *REFERENCES]:
            codes = torch.arange(frames * 16).view(frames, 16) % tiny_tts.CODES
            clone = {
                "ref_code": [codes if frames else None],
                "ref_spk_embedding": [speaker],
                "x_vector_only_mode": [not frames],
                "icl_mode": [bool(frames)],
            }
            reference = {"ref_ids": [ids([*ROLE, *words, 6, 5])]} if frames else {}
            made = prompt(
                model, languages=["english"], voice_clone_prompt=clone, **reference, **given
            )
            facts = {"words": words, "frames": frames}
            cases.append({"kind": "cloned", "text": text, **facts, **made})
        for whole in (False, True):
            told = {"instruct_ids": [ids(INSTRUCTIONS)]}
            made = prompt(model, whole, languages=["english"], **told, **given)
            cases.append({"kind": "described", "text": text, "whole": whole, **made})
    config = asdict(CONFIG)
    del config["talker"], config["predictor"], config["generation"]
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    GOLDEN.write_text(f'{{"config": {json.dumps(config)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    import transformers  # noqa: F401  (looks whether the modules below are there)

    for missing in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules[missing] = MagicMock()  # imported by the package, used by its other codec
    main()
