"""What the tests of calls share."""

import shutil
import subprocess
import wave

import numpy as np
import pytest

from offhook.media.pcm import Pcm


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Pcm:
    """Somebody speaks, for two or three seconds."""
    if shutil.which("flite") is None:
        pytest.skip("needs the flite command")
    path = tmp_path_factory.mktemp("voice") / "said.wav"
    text = "I would like to know when you are open tomorrow please"
    subprocess.run(["flite", "-voice", "slt", "-t", text, "-o", str(path)], check=True)
    with wave.open(str(path)) as said:
        return np.frombuffer(said.readframes(said.getnframes()), np.int16)
