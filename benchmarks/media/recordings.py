"""`offhook bench recordings FOLDER`: fetches the recordings that other benchmarks play.

Eleven of people who read or speak English, at 16 kHz: test data in the source of PocketSphinx (BSD;
those named austen are LibriVox's, in the public domain), which pip downloads. A table in the
folder's README has the words. OFFHOOK_SPEECH=FOLDER then names them to the other benchmarks, to the
callers of load tests and to the tests marked `speech`.
"""

import re
import subprocess
import sys
import tarfile
import wave
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import command
from offhook.media.pcm import RATE_IN

SOURCE = (
    "pocketsphinx==5.1.1"
    " --hash=sha256:675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355"
)
AUSTEN = "librivox/sense_and_sensibility_01_austen_64kb-"
RECORDINGS = {
    **{f"austen_{n}": f"{AUSTEN}{n}.wav" for n in ("0870", "0880", "0890", "0920", "0930")},
    **{f"card_{n}": f"cards/00{n}.wav" for n in (1, 2, 3)},
    "forever": "forever/input_2_16k.wav",
    "goforward": "goforward.raw",
    "something": "something.raw",
}
"""Their files below test/data of the source."""
TRANSCRIPTS = ("librivox/transcription", "cards/cards.transcription")
SPOKEN = {
    "forever": "feels like these days go on forever",
    "goforward": "go forward ten meters",
    "something": "go somewhere and do something",
}
"""The words of those without a transcript."""
SLIP = "more a amiable", "more amiable"
"""A word too many in a transcript."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("recordings", __doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    with TemporaryDirectory() as scratch:
        unpack(download(Path(scratch)), folder)
    print(f"{len(RECORDINGS)} recordings: OFFHOOK_SPEECH={folder.absolute()}")
    return 0


def download(folder: Path) -> Path:
    """Returns PocketSphinx's source, as pip leaves it in the folder."""
    wanted = folder / "wanted.txt"
    wanted.write_text(SOURCE)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "pocketsphinx",
    )
    subprocess.run([*pip, "--require-hashes", "-d", folder, "-r", wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Writes the recordings, and the words of each in a table of the folder's README."""
    with tarfile.open(archive) as source:
        root = source.getnames()[0].partition("/")[0]

        def content(name: str) -> bytes:
            file = source.extractfile(f"{root}/test/data/{name}")
            assert file is not None
            return file.read()

        said = {
            name: words
            for each in TRANSCRIPTS
            for words, name in re.findall(
                r"^<s> (.+?) +</s> \((.+)\)$", content(each).decode(), re.MULTILINE
            )
        }
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for name, path in RECORDINGS.items():
            target = folder / f"{name}.wav"
            if path.endswith(".wav"):
                target.write_bytes(content(path))
            else:
                with wave.open(str(target), "wb") as file:
                    file.setparams((1, 2, RATE_IN, 0, "NONE", ""))
                    file.writeframes(content(path))
            words = SPOKEN.get(name) or said[Path(path).stem].replace(*SLIP)
            rows.append(f"| {target.name} | {words} |\n")
    (folder / "README.md").write_text(f"| file | words |\n|---|---|\n{''.join(rows)}")
