"""How the memory of a GPU is divided, and how many streams it is said to follow."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.qwen3_asr.gpu import (  # noqa: E402
    PREFILL_TOKENS,
    recognition_plan,
    recognition_workspace,
    stream_bytes,
)
from offhook.pipeline.engines.qwen3_asr.model.model import (  # noqa: E402
    QWEN3_ASR_0_6B,
    QWEN3_ASR_1_7B,
)
from offhook.pipeline.engines.qwen3_tts.gpu import (  # noqa: E402
    CODEC_FRAMES,
    PAGES_PER_VOICE,
    PREFIX_PAGES,
    SynthesisPlan,
    synthesis_plan,
    synthesis_workspace,
)
from offhook.pipeline.engines.qwen3_tts.model.codec import QWEN3_CODEC, Codec  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.config import (  # noqa: E402
    QWEN3_TTS_0_6B,
    QWEN3_TTS_1_7B,
    TtsConfig,
)
from offhook.pipeline.engines.qwen3_tts.runner import STREAM_LADDER  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.segment_prefill import PREFIX_SLOTS  # noqa: E402
from offhook.pipeline.engines.shared.capacity import (  # noqa: E402
    ALONE,
    DEVIATIONS,
    MAX_FILES,
    MAX_STREAMS,
    MAX_VOICES,
    PAGES_PER_STREAM,
    RESERVE,
    SHARED,
    SPEAKS,
    budget,
    followed,
    open_streams,
    page_bytes,
    speaking_at_once,
)
from offhook.pipeline.engines.shared.pages import PAGE_SIZE  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.body import KVCache  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402

GIB = 2**30


def state_bytes() -> int:
    with torch.device("meta"):
        codec = Codec(QWEN3_CODEC).to(torch.bfloat16)
        state: int = codec.new_state(1).bytes_per_slot
    return state


STATE = state_bytes()


def speaking(room: int, c: TtsConfig = QWEN3_TTS_0_6B, most: int = 0) -> SynthesisPlan:
    return synthesis_plan(room, c, QWEN3_CODEC, STATE, STREAM_LADDER, PREFIX_SLOTS, most)


def taken(plan: SynthesisPlan, c: TtsConfig) -> int:
    """Counted from the tensors themselves."""
    cache = KVCache(c.talker, plan.pages, PAGE_SIZE, "meta", torch.bfloat16)
    states = (plan.streams + PREFIX_SLOTS + 1) * STATE
    workspace = synthesis_workspace(c, QWEN3_CODEC, plan.batch, plan.codec_frames)
    return cache.k.nbytes + cache.v.nbytes + states + workspace


@pytest.mark.parametrize("c", [QWEN3_TTS_0_6B, QWEN3_TTS_1_7B])
@pytest.mark.parametrize("gib", [4, 8, 11, 20, 38, 75, 130])
def test_voices_their_codec_and_their_graphs_fit(gib: int, c: TtsConfig) -> None:
    plan = speaking(gib * GIB, c)
    one_more = PAGES_PER_VOICE * page_bytes(c.talker) + STATE
    assert 1 <= plan.streams <= MAX_VOICES
    assert gib * GIB - 2 * one_more < taken(plan, c) <= gib * GIB + page_bytes(c.talker)
    assert plan.pages == plan.streams * PAGES_PER_VOICE + PREFIX_PAGES + 1


def test_more_memory_never_means_fewer_voices_or_smaller_launches() -> None:
    plans = [speaking(gib * GIB) for gib in range(4, 140, 2)]
    for smaller, larger in pairwise(plans):
        assert smaller.streams <= larger.streams
        assert smaller.codec_frames <= larger.codec_frames
        assert smaller.batch <= larger.batch
    assert plans[0].batch < plans[-1].batch == STREAM_LADDER[-1]
    assert plans[0].codec_frames < plans[-1].codec_frames == CODEC_FRAMES[0]


def test_no_more_memory_is_taken_than_the_streams_that_come_need() -> None:
    plan = speaking(75 * GIB, most=10)
    assert (plan.streams, plan.batch) == (10, 16)
    assert taken(plan, QWEN3_TTS_0_6B) < 6 * GIB
    few = recognition_plan(75 * GIB, QWEN3_ASR_0_6B, most=10)
    assert (few.streams, few.pages) == (10, (10 + MAX_FILES) * PAGES_PER_STREAM + 1)


@pytest.mark.parametrize("c", [QWEN3_ASR_0_6B, QWEN3_ASR_1_7B])
@pytest.mark.parametrize("gib", [5, 11, 20, 38, 75])
def test_recognition_fits(gib: int, c: "object") -> None:
    assert c is QWEN3_ASR_0_6B or c is QWEN3_ASR_1_7B
    plan = recognition_plan(gib * GIB, c)
    cache = KVCache(c.decoder, plan.pages, PAGE_SIZE, "meta", torch.bfloat16)
    used = cache.k.nbytes + cache.v.nbytes + (plan.streams + MAX_FILES) * stream_bytes(c)
    used += recognition_workspace(c, plan.tokens)
    one_more = PAGES_PER_STREAM * page_bytes(c.decoder) + stream_bytes(c)
    assert used <= gib * GIB + page_bytes(c.decoder)
    assert gib * GIB - 2 * one_more < used or plan.streams == MAX_STREAMS


def test_small_gpus_have_smaller_prefills_and_huge_ones_no_more_than_the_most() -> None:
    assert recognition_plan(5 * GIB, QWEN3_ASR_1_7B).tokens == PREFILL_TOKENS[-1]
    plan = recognition_plan(10_000 * GIB, QWEN3_ASR_1_7B)
    assert (plan.streams, plan.tokens) == (MAX_STREAMS, PREFILL_TOKENS[0])


def test_what_is_lacking_is_told() -> None:
    with pytest.raises(EngineError, match=r"0\.5 GiB of GPU memory are to be had beside the w"):
        speaking(GIB // 2)
    with pytest.raises(EngineError, match=r"1\.0 GiB of GPU memory .*, [2-5]\.\d GiB are needed"):
        recognition_plan(GIB, QWEN3_ASR_0_6B)


@pytest.mark.parametrize("gib", [24, 80, 141])
def test_two_models_share_a_gpu_whichever_comes_first(gib: int) -> None:
    """CUDA's own half GiB for each process included."""
    total, context = gib * GIB, GIB // 2
    weights = {"ears": 1_600_000_000, "voice": 1_800_000_000}
    for first, second in (("ears", "voice"), ("voice", "ears")):
        free = total
        for who in (first, second):
            free -= context + weights[who]
            room = budget(free, total, weights[who], SHARED)
            used = recognition_plan(room, QWEN3_ASR_0_6B) if who == "ears" else speaking(room)
            assert used.streams > (80 if gib > 24 else 20)
            free -= room
        assert free > RESERVE / 2


def test_a_worker_alone_takes_what_is_free_but_a_reserve() -> None:
    assert budget(70 * GIB, 80 * GIB, 5 * GIB, ALONE) == 69 * GIB
    assert budget(70 * GIB, 80 * GIB, 5 * GIB, SHARED) == 34 * GIB
    assert budget(GIB // 2, 80 * GIB, 0, ALONE) == 0


@given(st.integers(1, MAX_STREAMS))
def test_of_open_streams_seldom_more_are_in_use_than_the_gpu_follows(in_use: int) -> None:
    callers = open_streams(in_use)
    assert in_use <= callers <= in_use / SPEAKS
    assert callers == in_use or speaking_at_once(callers, SPEAKS, DEVIATIONS) <= in_use + 1e-6
    assert open_streams(in_use + 1) >= callers
    assert open_streams(in_use, in_use // 2) == in_use // 2


def test_streams_follow_from_what_a_batch_of_them_takes() -> None:
    assert followed(20.0, 512, 80.0, 0.8) == 1638
    assert followed(1000.0, 4, 80.0, 0.8) == 1  # far too slow: one at least
