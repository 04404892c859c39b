"""POST /v1/audio/alignments: when the words of a known text are spoken in a file."""

from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic.dataclasses
from aiohttp import web
from pydantic import AfterValidator, Field

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.media.files.formats import RawPcm
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.engines import no_aligner
from offhook.pipeline.speech.errors import UnsupportedRequest
from offhook.pipeline.speech.recognizer import MAX_ALIGNED_S, AlignsText
from offhook.pipeline.speech.remote.alignments_protocol import words_table
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.file_transcription_io import FileError, PieceReader, Pieces
from offhook.web.speech_api.http.speech_request import not_blank
from offhook.web.speech_api.http.transcript import name_of
from offhook.web.speech_api.http.transcription_request import language_tag
from offhook.web.speech_api.http.transcriptions_io import bad_file
from offhook.web.speech_api.http.upload_io import MAX_FIELDS_BYTES, receive
from offhook.web.speech_api.server_io import CONTEXT, SPEECH
from offhook.web.speech_api.validation import Text, build

MAX_TEXT_CHARS = 10_000
"""Maximum characters of a text to align, three times as many as are spoken in MAX_ALIGNED_S; a
longer one is refused with 400."""


@pydantic.dataclasses.dataclass(frozen=True)
class AlignmentForm:
    """The form fields besides the file."""

    text: Annotated[
        Text,
        AfterValidator(not_blank),
        Field(max_length=MAX_TEXT_CHARS, json_schema_extra={"minLength": 1}),
    ]
    language: Annotated[str, Field(description="en, en-US, english")]
    model: str = ""


async def alignments(request: web.Request) -> web.Response:
    server, context = request.app[SPEECH], request[CONTEXT]
    most_bytes = server.settings.max_upload_mb << 20
    async with (
        server.request("transcription", context, most_bytes + MAX_FIELDS_BYTES) as turn,
        receive(request, most_bytes, server.uploads) as upload,
    ):
        fields = dict(upload.fields)
        if len(fields) < len(upload.fields):
            raise ApiError(400, "a field is given twice")
        wanted = build(AlignmentForm, fields, lenient=server.settings.lenient)
        tag = language_tag(wanted.language)
        if tag is None:
            raise ApiError(400, "language is empty: it cannot be detected here", "language")
        if wanted.model:
            server.check_model("transcription", wanted.model)
        await turn()
        recognizer = await server.recognizer()
        context.stages.mark("loaded")
        try:
            pcm = await read_whole(upload.path, upload.raw)
        except (FileError, DecoderUnavailable) as error:
            raise bad_file(error, upload) from error
        server.count_audio(context, len(pcm) / RATE_IN)
        language = tag.partition("-")[0]
        try:
            if not isinstance(recognizer, AlignsText):
                raise UnsupportedRequest(no_aligner())
            words = await recognizer.align(pcm, wanted.text, language)
        except UnsupportedRequest as error:
            raise ApiError(400, str(error), code="cannot_align") from error
        context.stages.mark("inferred")
    table = {
        "language": name_of(language),
        "duration": round(len(pcm) / RATE_IN, 3),
        "text": wanted.text,
        "words": words_table(words),
    }
    return web.json_response(table)


async def read_whole(path: Path, raw: RawPcm | None = None) -> Pcm:
    """Returns the sound of a file of up to MAX_ALIGNED_S. Raises FileError, DecoderUnavailable."""
    reader = PieceReader(Pieces(path, (MAX_ALIGNED_S,), raw, MAX_ALIGNED_S))
    pieces = []
    try:
        while (piece := await reader.next()) is not None:
            pieces.append(piece.pcm)
    finally:
        await reader.close()
    return np.concatenate(pieces)
