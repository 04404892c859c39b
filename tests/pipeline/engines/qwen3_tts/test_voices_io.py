"""Voices that are kept: cloned, replaced, removed, found again, and files that are broken."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loguru import logger

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.qwen3_tts.voices import (
    Clone,
    Reference,
    Voice,
    VoiceStore,
    prepare,
)
from offhook.pipeline.engines.qwen3_tts.voices_io import (
    MAX_CLONING,
    NO_CODES,
    STRAY_S,
    Cloning,
    VoiceFolder,
    load_encoders,
    voice_folder,
)
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import UnknownVoice
from offhook.pipeline.speech.voice_cloning import VoiceError
from tests.pipeline.engines.qwen3_tts.test_voices import HIDDEN, MODEL, WORDS, some_clone, speech


class Encoder:
    """Stands in for the encoders: a vector and codes by the sound's digest, and how often."""

    def __init__(self) -> None:
        self.made: list[Reference] = []
        self.error: EngineError | None = None

    async def __call__(self, reference: Reference) -> Clone:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made.append(reference)
        seed = np.random.default_rng(int(reference.digest("")[:8], 16))
        frames = -(-len(reference.pcm) // 1920)
        codes = seed.integers(0, 2048, (frames, 16), np.int16) if reference.text else None
        return Clone(seed.standard_normal(HIDDEN, np.float32), codes)


def same(a: Clone, b: Clone) -> bool:
    return np.array_equal(a.embedding, b.embedding) and (
        a.codes is b.codes or np.array_equal(a.codes, b.codes)  # type: ignore[arg-type]
    )


@pytest.fixture
def folder(tmp_path: Path) -> VoiceFolder:
    return VoiceFolder(tmp_path / "voices", MODEL)


@pytest.fixture
def store(folder: VoiceFolder) -> VoiceStore:
    return VoiceStore(MODEL, "base", HIDDEN, (), folder, ("en", "de"))


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def cloning(store: VoiceStore, encoder: Encoder) -> Cloning:
    return Cloning(store, encoder)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    lines: list[str] = []
    number = logger.add(lines.append, level="WARNING", format="{message}")
    yield lines
    logger.remove(number)


def again(folder: VoiceFolder) -> VoiceStore:
    """Another process, or this one after a restart."""
    return VoiceStore(
        MODEL, "base", HIDDEN, (), VoiceFolder(folder.path.parent, MODEL), ("en", "de")
    )


def files(folder: VoiceFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


async def test_a_clone_is_kept(cloning: Cloning, store: VoiceStore, folder: VoiceFolder) -> None:
    voice = await cloning.clone(
        "Anna_2", speech(3), RATE_OUT, consent=True, text=WORDS, language="en"
    )
    assert (voice.name, voice.kind, voice.language, voice.text) == ("Anna_2", "clone", "en", WORDS)
    assert voice.created.startswith("20")
    assert store.voices() == [voice]
    clone = store.clone(voice)
    assert clone.codes is not None
    later = again(folder)
    assert later.voice("anna_2") == later.voice("ANNA_2") == voice
    assert same(later.clone(voice), clone)
    assert files(folder) == {"anna_2.json", f"{voice.digest}.npz"}


async def test_without_words_there_is_a_vector_alone(cloning: Cloning, folder: VoiceFolder) -> None:
    voice = await cloning.clone("bob", speech(3), RATE_OUT, consent=True)
    assert again(folder).clone(voice).codes is None


async def test_the_same_recording_is_encoded_once(
    cloning: Cloning, encoder: Encoder, store: VoiceStore, folder: VoiceFolder
) -> None:
    async def clone(how: Cloning, name: str, seconds: float = 3, text: str = "") -> Voice:
        return await how.clone(name, speech(seconds), RATE_OUT, consent=True, text=text)

    one = await clone(cloning, "one")
    assert (await clone(cloning, "two")).digest == one.digest
    assert len(encoder.made) == 1
    assert (await clone(Cloning(again(folder), encoder), "three")).digest == one.digest
    assert len(encoder.made) == 1
    await clone(cloning, "four", text=WORDS)
    await clone(cloning, "five", seconds=6)
    assert len(encoder.made) == 3
    store.remove("one")
    store.remove("three")
    assert same(again(folder).clone(store.voice("two")), store.clone(one))
    store.remove("two")
    assert f"{one.digest}.npz" not in files(folder)


async def test_nobody_is_cloned_without_consent(cloning: Cloning, encoder: Encoder) -> None:
    for consent in (False, 1, "yes"):
        with pytest.raises(VoiceError, match="consent"):
            await cloning.clone("anna", speech(3), RATE_OUT, consent=consent)  # type: ignore[arg-type]
    assert not encoder.made


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "a\\b", "a.json", "/etc/passwd", "a\0", "é", "a\n", "a" * 65]
)
async def test_names_that_are_none(
    cloning: Cloning, store: VoiceStore, folder: VoiceFolder, tmp_path: Path, name: str
) -> None:
    with pytest.raises(VoiceError, match="is no name"):
        await cloning.clone(name, speech(3), RATE_OUT, consent=True)
    for use in (store.voice, store.remove):
        with pytest.raises(UnknownVoice):
            use(name)
    for path in (folder.voice, folder.remove, folder.clone):
        with pytest.raises(ValueError, match="is no"):
            path(name)
    assert not os.listdir(tmp_path)


async def test_a_name_is_taken_until_it_is_replaced(
    cloning: Cloning, store: VoiceStore, folder: VoiceFolder
) -> None:
    other = again(folder)
    first = await cloning.clone("anna", speech(3), RATE_OUT, consent=True)
    assert same(other.clone(other.voice("anna")), store.clone(first))
    with pytest.raises(VoiceError, match="a voice Anna already"):
        await cloning.clone("Anna", speech(6), RATE_OUT, consent=True)
    second = await cloning.clone("Anna", speech(6), RATE_OUT, consent=True, replace=True)
    assert store.voices() == other.voices() == [second]
    assert same(other.clone(other.voice("anna")), store.clone(second))
    assert not same(store.clone(first), store.clone(second))
    assert files(folder) == {"anna.json", f"{second.digest}.npz"}


async def test_a_removed_voice_leaves_nothing(
    cloning: Cloning, store: VoiceStore, folder: VoiceFolder
) -> None:
    await cloning.clone("anna", speech(3), RATE_OUT, consent=True)
    store.remove("ANNA")
    assert files(folder) == set()
    assert store.clones.nbytes == len(store.clones) == 0
    for use in (store.voice, store.remove):
        with pytest.raises(UnknownVoice, match="no voice 'anna'"):
            use("anna")


async def test_two_ask_for_one_name_at_once(cloning: Cloning, encoder: Encoder) -> None:
    asked = [cloning.clone("anna", speech(3), RATE_OUT, consent=True) for _ in range(2)]
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, Voice)
    assert isinstance(second, VoiceError)
    assert len(encoder.made) == 1


async def test_too_many_at_once_are_refused(cloning: Cloning) -> None:
    asked = [
        cloning.clone(f"v{i}", speech(3), RATE_OUT, consent=True) for i in range(MAX_CLONING + 2)
    ]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(end, Voice) for end in ends] == [True] * MAX_CLONING + [False] * 2
    assert "try again" in str(ends[-1])
    assert await cloning.clone("later", speech(3), RATE_OUT, consent=True)


async def test_what_fails_leaves_no_voice(
    cloning: Cloning, encoder: Encoder, store: VoiceStore, folder: VoiceFolder
) -> None:
    encoder.error = EngineError("the thread is gone")
    with pytest.raises(EngineError, match="is gone"):
        await cloning.clone("anna", speech(3), RATE_OUT, consent=True)
    encoder.error = None
    folder.path.parent.write_text("in the way")
    with pytest.raises(VoiceError, match="anna cannot be kept"):
        await cloning.clone("anna", speech(3), RATE_OUT, consent=True)
    assert store.voices() == []
    folder.path.parent.unlink()
    assert await cloning.clone("anna", speech(3), RATE_OUT, consent=True)


async def test_the_voices_of_the_model(folder: VoiceFolder, encoder: Encoder) -> None:
    store = VoiceStore(
        "a model", "custom_voice", HIDDEN, ("serena", "Uncle Fu"), folder, ("en", "de")
    )
    assert [v.name for v in store.voices()] == ["serena", "Uncle Fu"]
    assert store.voice("Serena").kind == store.voice("uncle fu").kind == "speaker"
    assert store.voice("serena").digest != store.voice("Uncle Fu").digest
    with pytest.raises(VoiceError, match="cannot be removed"):
        store.remove("SERENA")
    with pytest.raises(VoiceError, match=r"a model cannot clone .* Base"):
        await Cloning(store, encoder).clone("anna", speech(3), RATE_OUT, consent=True)
    with pytest.raises(VoiceError, match=r"VoiceDesign"):
        store.design("anna", "an old woman", created="")
    both = VoiceStore(MODEL, "base", HIDDEN, ("serena",), folder, ("en", "de"))
    with pytest.raises(VoiceError, match="Serena is a voice of the model"):
        await Cloning(both, encoder).clone("Serena", speech(3), RATE_OUT, consent=True)


def test_voices_in_words(folder: VoiceFolder) -> None:
    store = VoiceStore("a model", "voice_design", HIDDEN, (), folder, ("en", "de"))
    voice = store.design("narrator", " An old woman, calm. ", language="en", created="2026-11-21")
    assert (voice.kind, voice.text, voice.language) == ("design", "An old woman, calm.", "en")
    assert again(folder).voice("narrator") == voice
    with pytest.raises(VoiceError, match="already"):
        store.design("narrator", "A boy.", created="")
    other = store.design("narrator", "A boy.\ud800", created="", replace=True)
    assert other.digest != voice.digest
    for text in ("", " ", "x" * 2001):
        with pytest.raises(VoiceError, match="1 to 2000 characters"):
            store.design("new", text, created="")
    with pytest.raises(VoiceError, match="language is 'English'"):
        store.design("new", "A boy.", created="", language="English")
    store.remove("narrator")
    assert store.voices() == []


async def test_what_memory_has_is_not_read_again(
    cloning: Cloning, store: VoiceStore, folder: VoiceFolder
) -> None:
    voice = await cloning.clone("anna", speech(3), RATE_OUT, consent=True)
    (folder.path / f"{voice.digest}.npz").unlink()
    hits = store.clones.hits
    assert store.clone(voice)
    assert store.clones.hits == hits + 1
    later = again(folder)
    with pytest.raises(VoiceError, match=r"anna is broken .* clone it again"):
        later.clone(later.voice("anna"))
    assert later.clones.misses == 1


# --- files ---


def put(folder: VoiceFolder, name: str, digit: str, clone: Clone | None = None) -> Voice:
    voice = Voice(name, "clone", 64 * digit, consent=True)
    folder.save(voice, clone or some_clone())
    return voice


def age(folder: VoiceFolder, name: str, seconds: float) -> None:
    path = folder.path / name
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


def test_the_folder_is_bounded_by_count(tmp_path: Path, warnings: list[str]) -> None:
    folder = VoiceFolder(tmp_path, MODEL, most=3)
    for i, name in enumerate("abc"):
        put(folder, name, str(i))
        age(folder, f"{name}.json", 100 - i)
    assert folder.voice("a")  # used
    put(folder, "d", "d")
    assert [v.name for v in folder.voices()] == ["a", "c", "d"]
    assert folder.clone(64 * "1") is None
    assert folder.clone(64 * "0") is not None
    assert "the voice b is removed" in warnings[0]


def test_the_folder_is_bounded_by_bytes(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path, MODEL, most_bytes=13_000)
    for i in range(6):
        put(folder, f"v{i}", str(i), some_clone(500))
        age(folder, f"v{i}.json", 100 - i)
    left = [v.name for v in folder.voices()]
    assert left == ["v2", "v3", "v4", "v5"]
    assert sum(path.stat().st_size for path in folder.path.iterdir()) <= 13_000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'{"name": "anna"}',
        b" " * (1 << 20) + b"{}",
        Voice("other", "clone", 64 * "a", consent=True).to_json().encode(),
        Voice("anna", "clone", 64 * "a", consent=True).to_json().replace("true", "false").encode(),
        Voice("anna", "clone", 64 * "a", consent=True).to_json().replace("aa", "..").encode(),
    ],
)
def test_a_broken_voice_is_removed(folder: VoiceFolder, warnings: list[str], text: bytes) -> None:
    put(folder, "bob", "b")
    path = folder.path / "anna.json"
    path.write_bytes(text)
    assert [v.name for v in folder.voices()] == ["bob"]
    assert not path.exists()
    assert len(warnings) == 1
    assert "anna.json is broken and is removed" in warnings[0]


@settings(max_examples=40)
@given(st.data())
def test_a_broken_clone_is_never_used(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = VoiceFolder(tmp_path_factory.mktemp("voices"), MODEL)
    codes = np.arange(64, dtype=np.int16).reshape(4, 16)
    clone = Clone(np.arange(8, dtype=np.float32), codes)
    voice = put(folder, "anna", "a", clone)
    path = folder.path / f"{voice.digest}.npz"
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    path.write_bytes(
        data.draw(st.sampled_from([whole[:at], whole[:at] + flipped + whole[at + 1 :]]))
    )
    read = folder.clone(voice.digest)
    assert (read is None and not path.exists()) or (read is not None and same(read, clone))


@pytest.mark.parametrize(
    "arrays",
    [
        {"codes": np.zeros((3, 16), np.int16)},
        {"embedding": np.zeros(HIDDEN, np.float32)},
        {"embedding": np.zeros(HIDDEN), "codes": NO_CODES},
        {"embedding": np.full(HIDDEN, np.nan, np.float32), "codes": NO_CODES},
        {"embedding": np.zeros(HIDDEN, np.float32), "codes": np.full((3, 16), 2048, np.int16)},
        {"embedding": np.zeros(HIDDEN, np.float32), "codes": np.full((3, 16), -1, np.int16)},
        {"embedding": np.zeros(HIDDEN, np.float32), "codes": np.zeros((3, 15), np.int16)},
        {"embedding": np.array([None, "pickled"]), "codes": NO_CODES},
    ],
)
def test_numbers_that_are_no_clone(
    folder: VoiceFolder, warnings: list[str], arrays: dict[str, np.ndarray]
) -> None:
    """They would break the model, not the store."""
    voice = put(folder, "anna", "a")
    np.savez(folder.path / f"{voice.digest}.npz", **arrays)
    assert folder.clone(voice.digest) is None
    assert len(warnings) == 1
    store = again(folder)
    with pytest.raises(VoiceError, match="clone it again"):
        store.clone(store.voice("anna"))


def test_a_clone_of_another_width_is_not_used(folder: VoiceFolder) -> None:
    put(folder, "anna", "a", some_clone(HIDDEN + 1))
    store = again(folder)
    with pytest.raises(VoiceError, match="of another model: clone it again"):
        store.clone(store.voice("anna"))


def test_a_name_changed_in_the_archive_is_noticed(folder: VoiceFolder, warnings: list[str]) -> None:
    """Else a clone with codes would be taken for one without."""
    codes = np.ones((4, 16), np.int16)
    voice = put(folder, "anna", "a", Clone(np.zeros(HIDDEN, np.float32), codes))
    path = folder.path / f"{voice.digest}.npz"
    whole = path.read_bytes()
    at = whole.rindex(b"codes.npy")
    path.write_bytes(whole[:at] + b"coded" + whole[at + 5 :])
    assert folder.clone(voice.digest) is None
    assert len(warnings) == 1


def test_a_model_in_a_folder_is_the_same_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("model", "./model", str(tmp_path / "model"), "~/model")
    assert len({voice_folder(TtsModels(name, voices="voices")).path for name in names}) == 1
    assert (
        voice_folder(TtsModels("org/model")).path.parent == tmp_path / ".local/share/offhook/voices"
    )


def test_models_do_not_share_voices(tmp_path: Path) -> None:
    models = [MODEL, "Qwen/Qwen3-TTS-12Hz-1.7B-Base", "/", "..", "a/b", "a-b", "x" * 300]
    folders = [VoiceFolder(tmp_path, model) for model in models]
    for i, folder in enumerate(folders):
        put(folder, "anna", str(i))
    assert [folder.voices()[0].digest[0] for folder in folders] == list("0123456")
    assert {path.parent for path in tmp_path.rglob("*.json")} == {f.path for f in folders}
    assert {f.path.parent for f in folders} == {tmp_path}


def test_what_an_ended_process_left_is_swept(folder: VoiceFolder) -> None:
    put(folder, "anna", "a")
    stray, fresh = 64 * "1" + ".npz", 64 * "2" + ".npz"
    for name in (stray, fresh, "x.tmp"):
        (folder.path / name).write_bytes(b"half")
    age(folder, stray, STRAY_S + 1)
    age(folder, "x.tmp", STRAY_S + 1)
    age(folder, f"{64 * 'a'}.npz", STRAY_S + 1)
    put(folder, "bob", "b")
    assert files(folder) == {
        "anna.json",
        "bob.json",
        f"{64 * 'a'}.npz",
        f"{64 * 'b'}.npz",
        fresh,
    }


# --- with encoders ---


async def test_small_encoders_make_a_clone(folder: VoiceFolder, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from tests.pipeline.engines.qwen3_tts.model import make_cloning_golden as golden
    from tests.pipeline.engines.qwen3_tts.model import test_speaker_encoder, test_speech_encoder

    torch.set_num_threads(1)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    test_speech_encoder.write(test_speaker_encoder.write(checkpoint))
    encode = load_encoders(checkpoint, "cpu")
    width = golden.SPEAKER["enc_dim"]
    store = VoiceStore(MODEL, "base", width, (), folder, ("en", "de"))
    cloning = Cloning(store, lambda reference: asyncio.to_thread(encode, reference))
    pcm = speech(3, 16_000)
    voice = await cloning.clone("anna", pcm, 16_000, consent=True, text=WORDS)
    plain = await cloning.clone("plain", pcm, 16_000, consent=True)
    lower = await cloning.clone("lower", speech(3, 14_000), 16_000, consent=True)
    clone = again(folder).known(voice.digest)
    assert clone is not None
    assert clone.codes is not None
    with_pause = prepare(pcm, 16_000, WORDS).pcm_for_codes
    assert len(clone.codes) == -(-len(with_pause) // 1920)
    assert len(with_pause) > len(prepare(pcm, 16_000).pcm)
    assert len(np.unique(clone.codes)) > 20
    assert clone.embedding.shape == (width,)
    assert np.array_equal(store.clone(plain).embedding, clone.embedding)
    assert np.abs(store.clone(lower).embedding - clone.embedding).max() > 0.01
