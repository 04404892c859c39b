"""What docs/choices.md says of codecs that are left out."""

import av
import pytest


@pytest.mark.parametrize(
    ("decoder", "encoders"),
    [
        ("g729", ("g729", "libbcg729")),
        ("amrwb", ("amrwb", "libvo_amrwbenc", "libopencore_amrwb")),
    ],
)
def test_ffmpeg_hears_them_and_does_not_speak_them(decoder: str, encoders: tuple[str, ...]) -> None:
    """Once it does, they can be spoken: see "Codecs of phones" there."""
    av.Codec(decoder, "r")
    for encoder in encoders:
        with pytest.raises(ValueError, match=encoder):
            av.Codec(encoder, "w")
