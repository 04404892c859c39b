"""What can be wrong with a bucket, in words that say what to do."""

from collections.abc import Mapping


class BucketFault(OSError):
    """A bucket does not do what it is asked for now; the message says why, and what to do."""

    def __init__(self, words: str, code: str = "") -> None:
        super().__init__(words)
        self.code = code
        """What S3 calls it; "" if nothing has answered."""


class NotInBucket(BucketFault):
    """There is no such file in the bucket."""


class NotWanted(Exception):
    """Raised in an upload of what was deleted meanwhile."""


ADVICE: Mapping[str, str] = {
    "AccessDenied": (
        "the key may not do that: it needs s3:PutObject, GetObject, DeleteObject, ListBucket, "
        "ListBucketMultipartUploads, ListMultipartUploadParts and AbortMultipartUpload"
    ),
    "ExpiredToken": "the credentials have expired: see [s3] access_key",
    "InvalidAccessKeyId": "the server does not know this key: see [s3] access_key",
    "NoSuchBucket": "there is no such bucket: create it, or see [s3] bucket",
    "PermanentRedirect": "the bucket is in another region: see [s3] region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: see [s3] region",
    "RequestTimeTooSkewed": "the clocks of this machine and the server differ: set them",
    "SignatureDoesNotMatch": "the secret does not belong to the key: see [s3] secret_key",
    "403": "the key may not do that, or its secret is wrong: see [s3] access_key and secret_key",
    "404": "there is no such bucket: create it, or see [s3] bucket",
}
"""By the codes of S3's errors; of answers without a body there is only the status."""
OF_OBJECTS = frozenset(("NoSuchKey", "NoSuchVersion"))
"""Codes of a file that is not there, while nothing is wrong with the bucket."""


def refused(operation: str, code: str, message: str) -> BucketFault:
    """Returns the fault of an answer that is an error."""
    if code in OF_OBJECTS or (operation in ("head_object", "get_object") and code == "404"):
        return NotInBucket("the file is not in the bucket", code)
    advice = ADVICE.get(code, "")
    said = " ".join(message.split())
    if not advice:
        return BucketFault(f"{said} ({code})" if said else code, code)
    return BucketFault(f"{advice} ({code})", code)
