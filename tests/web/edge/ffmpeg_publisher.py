"""FFmpeg's own WHIP client, in PyAV: python -m tests.web.edge.ffmpeg_publisher URL FILE [video]

Sends a file of 48 kHz samples in real time, with "video" a picture beside it, and then silence
until its standard input ends. It is a process of
its own because FFmpeg connects while it holds the interpreter.
"""

import sys
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from select import select
from time import monotonic, sleep

import av
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

RATE = 48_000
FRAME = RATE // 50
FRAMES_PER_PICTURE = 5


def certificate(folder: Path) -> dict[str, str]:
    """A certificate that OpenSSL accepts: an FFmpeg built with GnuTLS makes one on P-224."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ffmpeg")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(signed.public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, pkcs8, plain))
    return {"cert_file": str(files[0]), "key_file": str(files[1])}


def publish(url: str, file: Path, video: bool) -> None:
    sound = np.fromfile(file, np.int16)
    options = {"authorization": "sesame", **certificate(file.parent)}
    with av.open(url, "w", format="whip", options=options) as output:
        audio = output.add_stream("libopus", rate=RATE)
        assert isinstance(audio, av.AudioStream)
        audio.layout = "stereo"
        picture = None
        if video:
            picture = output.add_stream("libx264", rate=RATE // FRAME // FRAMES_PER_PICTURE)
            assert isinstance(picture, av.VideoStream)
            picture.width, picture.height, picture.pix_fmt = 320, 180, "yuv420p"
            picture.options = {"preset": "ultrafast", "tune": "zerolatency"}
            picture.codec_context.max_b_frames = 0
        output.start_encoding()
        started = monotonic()
        silence = repeat(np.zeros(FRAME, np.int16))
        frames = chain(sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME), silence)
        for number, mono in enumerate(frames):
            if select([sys.stdin], [], [], 0)[0]:
                break
            samples = mono.repeat(2)
            frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="stereo")
            frame.sample_rate, frame.pts = RATE, number * FRAME
            output.mux(audio.encode(frame))
            if picture is not None and number % FRAMES_PER_PICTURE == 0:
                still = av.VideoFrame.from_ndarray(np.zeros((270, 320), np.uint8), "yuv420p")
                still.pts = number // FRAMES_PER_PICTURE
                output.mux(picture.encode(still))
            sleep(max(0.0, started + (number + 1) * FRAME / RATE - monotonic()))


if __name__ == "__main__":
    publish(sys.argv[1], Path(sys.argv[2]), "video" in sys.argv[3:])
