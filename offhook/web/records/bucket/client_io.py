"""A bucket of S3 or of a server that speaks its protocol: files up, down and away. Everything here
blocks, and may be used by several threads."""

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from loguru import logger

from offhook.web.records.bucket.faults import BucketFault, NotInBucket, NotWanted, refused
from offhook.web.records.bucket.places import (
    SCHEME,
    is_encrypted,
    name_of,
    split,
    timeline_of,
)
from offhook.web.records.bucket.settings import BucketSettings

PART_BYTES = 8 << 20
"""Size of a part of a file that is uploaded in parts, as larger ones are: half an hour of sound."""
AHEAD_BYTES = 1 << 20
"""Of a file that is played are read at once."""
CONNECT_S, READ_S = 5.0, 30.0
"""Time limits in s of a connection, and of a pause within an answer."""
ATTEMPTS = 2
"""Maximum times that a request is sent; what waits is tried again later besides."""
LINK_S = 3600
"""Time in s after which a signed link is refused."""
PROBE = b"offhook doctor"
KINDS = {".ogg": "audio/ogg", ".jsonl": "application/jsonl"}


class Health:
    """Whether a bucket works, said in the log when that changes."""

    def __init__(self, place: str, on_change: Callable[[bool], object]) -> None:
        self._place, self._on_change = place, on_change
        self._lock = threading.Lock()
        self._fault: Literal["unreachable", "refused"] | None = None
        on_change(True)

    def failed(self, fault: BucketFault) -> None:
        with self._lock:
            before, self._fault = self._fault, "refused" if fault.code else "unreachable"
            is_new = self._fault != before
        if is_new:
            self._on_change(False)
            logger.warning(
                "recordings wait in [recording] directory, as {} cannot be used: {}",
                *(self._place, fault),
            )

    def works(self) -> None:
        with self._lock:
            was_failing, self._fault = self._fault is not None, None
        if was_failing:
            self._on_change(True)
            logger.warning("{} can be used again: what waited is uploaded", self._place)


class Bucket:
    """The bucket of a configuration. Methods raise BucketFault."""

    def __init__(
        self, settings: BucketSettings, on_change: Callable[[bool], object] = lambda works: None
    ) -> None:
        """`on_change` is called with whether the bucket works. Raises ValueError for settings that
        cannot be used, and without the package."""
        try:
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
            from urllib3.exceptions import HTTPError
        except ModuleNotFoundError as error:
            words = "a bucket needs the botocore package: run .venv/bin/pip install botocore"
            raise ValueError(words) from error

        self._refused, self._unreached = ClientError, (BotoCoreError, HTTPError)
        self.settings = settings
        self.health = Health(self.place, on_change)
        config = Config(
            signature_version="s3v4",
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
            s3={"addressing_style": "path" if settings.path_style else "virtual"},
            # What is newer than S3's protocol, as other servers speak it, is left out.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = botocore.session.get_session()
        region = settings.region or session.get_config_variable("region") or "us-east-1"
        try:
            self._client = session.create_client(
                "s3",
                endpoint_url=settings.endpoint or None,
                region_name=region,
                aws_access_key_id=settings.access_key or None,
                aws_secret_access_key=settings.secret_key or None,
                config=config,
            )
        except BotoCoreError as error:
            raise ValueError(str(error)) from error

    @property
    def place(self) -> str:
        """Returns where the bucket is, for people."""
        at = f" at {self.settings.endpoint}" if self.settings.endpoint else ""
        return f"the bucket {self.settings.bucket}{at}"

    def place_of(self, name: str) -> str:
        """Returns where a file of this name lies once it is uploaded."""
        return f"{SCHEME}{self.settings.bucket}/{self.settings.prefix}{name}"

    # --- up ---

    def upload(self, path: Path, place: str, is_wanted: Callable[[], bool]) -> None:
        """Uploads a file, and makes sure that it has arrived. Parts that an earlier attempt has
        uploaded are not sent again. `is_wanted` is asked before each part. Raises NotWanted, and
        OSError of the file, too."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not is_wanted():
                raise NotWanted
            if size <= PART_BYTES:
                tag = self._put(file, place)
            else:
                tag = self._put_in_parts(file, place, is_wanted)
        found = self._ask("head_object", place)
        if found["ContentLength"] != size or found["ETag"] != tag:
            raise BucketFault(f"{place} has not arrived as it was sent: is it written by others?")

    def _put(self, file: BinaryIO, place: str) -> str:
        content = file.read()
        answer = self._ask(
            *("put_object", place), **_body(content), ContentType=content_type(place)
        )
        return _checked(answer, content)

    def _put_in_parts(self, file: BinaryIO, place: str, is_wanted: Callable[[], bool]) -> str:
        upload = next(self._uploads_of(place), "")
        there = self._parts_of(place, upload) if upload else {}
        if not upload:
            begun = self._ask("create_multipart_upload", place, ContentType=content_type(place))
            upload = begun["UploadId"]
        parts: list[dict[str, Any]] = []
        while content := file.read(PART_BYTES):
            if not is_wanted():
                raise NotWanted
            number = len(parts) + 1
            tag = there.get(number, "")
            if tag.strip('"') != _md5(content).hex():
                answer = self._ask(
                    *("upload_part", place), UploadId=upload, PartNumber=number, **_body(content)
                )
                tag = _checked(answer, content)
            parts.append({"PartNumber": number, "ETag": tag})
        answer = self._ask(
            *("complete_multipart_upload", place),
            UploadId=upload,
            MultipartUpload={"Parts": parts},
        )
        self._abort_uploads(place)
        return str(answer["ETag"])

    def _uploads_of(self, place: str) -> Iterator[str]:
        """Yields the ids of uploads of a file that were begun and not completed."""
        bucket, key = split(place)
        found = self._ask("list_multipart_uploads", f"{SCHEME}{bucket}/", Prefix=key)
        for upload in found.get("Uploads", ()):
            if upload["Key"] == key:
                yield upload["UploadId"]

    def _parts_of(self, place: str, upload: str) -> dict[int, str]:
        """Returns the tags of the parts that have arrived, by their numbers."""
        found = self._ask("list_parts", place, UploadId=upload)
        return {part["PartNumber"]: part["ETag"] for part in found.get("Parts", ())}

    def _abort_uploads(self, place: str) -> None:
        for upload in self._uploads_of(place):
            self._ask("abort_multipart_upload", place, UploadId=upload)

    # --- down ---

    def size(self, place: str) -> int:
        """Returns the bytes of a file. Raises NotInBucket, too."""
        return int(self._ask("head_object", place)["ContentLength"])

    def read(self, place: str, start: int, stop: int) -> bytes:
        """Returns bytes of a file. Raises NotInBucket, too."""
        answer = self._ask("get_object", place, Range=f"bytes={start}-{stop - 1}")
        try:
            return bytes(answer["Body"].read())
        except self._unreached as error:
            raise self._unreachable(error) from error

    def link(self, place: str) -> str:
        """Returns a signed link with which anybody can read a file for LINK_S."""
        bucket, key = split(place)
        asked = {"Bucket": bucket, "Key": key}
        return str(self._client.generate_presigned_url("get_object", asked, LINK_S))

    # --- away ---

    def remove(self, sound: str) -> None:
        """Deletes a sound and its timeline, with what was uploaded of them in part, and in a bucket
        with versions all of these. Nothing need be there."""
        for place in (sound, timeline_of(sound)):
            self._delete(place)

    def _delete(self, place: str) -> None:
        self._abort_uploads(place)
        answer = self._ask("delete_object", place)
        if answer.get("DeleteMarker"):
            self._delete_versions(place)

    def _delete_versions(self, place: str) -> None:
        bucket, key = split(place)
        found = self._ask("list_object_versions", f"{SCHEME}{bucket}/", Prefix=key)
        for version in (*found.get("Versions", ()), *found.get("DeleteMarkers", ())):
            if version["Key"] == key:
                self._ask("delete_object", place, VersionId=version["VersionId"])

    def check(self) -> None:
        """Writes, reads and deletes a file, as recordings are."""
        place = self.place_of(".offhook-doctor")
        self._ask("put_object", place, **_body(PROBE))
        if self.read(place, 8, len(PROBE)) != PROBE[8:]:
            raise BucketFault("it does not answer requests for a part of a file")
        self._delete(place)

    # --- requests ---

    def _ask(self, operation: str, place: str, **more: Any) -> dict[str, Any]:
        bucket, key = split(place)
        about = {"Bucket": bucket, "Key": key} if key else {"Bucket": bucket}
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**about, **more)
        except self._refused as error:
            said = error.response.get("Error", {})
            fault = refused(operation, said.get("Code", ""), said.get("Message", ""))
            if not isinstance(fault, NotInBucket):
                self.health.failed(fault)
            raise fault from error
        except self._unreached as error:
            raise self._unreachable(error) from error
        self.health.works()
        return answer

    def _unreachable(self, error: Exception) -> BucketFault:
        words = " ".join(str(error).split())
        hint = "see [s3] endpoint" if self.settings.endpoint else "see [s3] access_key and region"
        fault = BucketFault(f"{words}: {hint}")
        self.health.failed(fault)
        return fault


class BucketFile:
    """A file in a bucket, as a `Source` that reads ahead."""

    def __init__(self, bucket: Bucket, place: str) -> None:
        """Raises BucketFault, NotInBucket."""
        self.name = name_of(place)
        self._bucket, self._place = bucket, place
        self.size = bucket.size(place)
        self._start, self._read = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        stop = min(offset + length, self.size)
        if offset >= stop:
            return b""
        if not self._start <= offset <= stop <= self._start + len(self._read):
            until = min(max(stop, offset + AHEAD_BYTES), self.size)
            self._start, self._read = offset, self._bucket.read(self._place, offset, until)
        return self._read[offset - self._start : stop - self._start]

    def close(self) -> None:
        self._read = b""


def content_type(place: str) -> str:
    """Returns the Content-Type that a file has in the bucket."""
    if is_encrypted(place):
        return "application/octet-stream"
    return KINDS.get(Path(place).suffix, "application/octet-stream")


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _body(content: bytes) -> dict[str, Any]:
    """Returns the arguments of a request with content, which the server compares with its hash."""
    return {"Body": content, "ContentMD5": base64.b64encode(_md5(content)).decode()}


def _checked(answer: dict[str, Any], content: bytes) -> str:
    """Returns the tag of what was stored. Raises BucketFault if that is something else: the tag is
    a hash of the content, unless the bucket encrypts it with a key of KMS."""
    tag = str(answer["ETag"])
    by_kms = answer.get("ServerSideEncryption", "").startswith("aws:kms")
    if not by_kms and tag.strip('"') != _md5(content).hex():
        raise BucketFault("what was stored is not what was sent: it is sent again")
    return tag
