"""The recordings that benchmarks play, and how those begin."""

import io
import subprocess
import sys
import tarfile
import wave
from pathlib import Path

import numpy as np

from benchmarks.media.recordings import RECORDINGS, TRANSCRIPTS, unpack
from benchmarks.speech.recordings import read_16k, references
from tests.deploy.servers import ROOT
from tests.support.waiting import HANGS_S


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16000, 0, "NONE", ""))
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def source(folder: Path) -> Path:
    """An archive like PocketSphinx's: what it has of each recording counts up from its number."""
    archive = folder / "pocketsphinx-0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"pocketsphinx-0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        add("README.md", b"words")
        said = dict.fromkeys(TRANSCRIPTS, "")
        for number, path in enumerate(RECORDINGS.values()):
            sound = np.arange(number, number + 100, dtype=np.int16)
            add(f"test/data/{path}", wav(sound) if path.endswith(".wav") else sound.tobytes())
            for transcript in TRANSCRIPTS:
                if Path(transcript).parent == Path(path).parent:
                    said[transcript] += (
                        f"<s> it is more a amiable {number}  </s> ({Path(path).stem})\n"
                    )
        for name, text in said.items():
            add(f"test/data/{name}", text.encode())
    return archive


def test_recordings_are_unpacked_with_their_words(tmp_path: Path) -> None:
    folder = tmp_path / "speech"
    unpack(source(tmp_path), folder)
    words = references(folder)
    assert [path.stem for path in words] == list(RECORDINGS)
    assert words[folder / "card_2.wav"] == "it is more amiable 6"
    assert words[folder / "goforward.wav"] == "go forward ten meters"
    for number, path in enumerate(words):
        assert read_16k(path).tolist() == list(range(number, number + 100))


def test_numpy_comes_with_one_thread_also_where_it_is_imported_first() -> None:
    looks = (
        "import benchmarks, sys; assert 'offhook' in sys.modules; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", looks], check=True, cwd=ROOT, timeout=HANGS_S)
