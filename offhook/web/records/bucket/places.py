"""Where a recording lies, as the store names it: a path, or s3://BUCKET/KEY."""

from pathlib import PurePosixPath

from offhook.media.sealing.names import SUFFIX, timeline_path

SCHEME = "s3://"


def in_bucket(place: str) -> bool:
    """Returns whether a recording lies in a bucket."""
    return place.startswith(SCHEME)


def is_encrypted(place: str) -> bool:
    """Returns whether a recording was encrypted by our key."""
    return place.endswith(SUFFIX)


def name_of(place: str) -> str:
    """Returns the name of a file without its folder or bucket.

    >>> name_of("s3://calls/offhook/1-7f3a.ogg.sealed")
    '1-7f3a.ogg.sealed'
    """
    return place.rpartition("/")[2]


def split(place: str) -> tuple[str, str]:
    """Returns the bucket and the key of a place in a bucket.

    >>> split("s3://calls/offhook/1-7f3a.ogg")
    ('calls', 'offhook/1-7f3a.ogg')
    """
    bucket, _, key = place.removeprefix(SCHEME).partition("/")
    return bucket, key


def timeline_of(place: str) -> str:
    """Returns where the timeline lies that belongs to a sound.

    >>> timeline_of("s3://calls/offhook/1-7f3a.ogg.sealed")
    's3://calls/offhook/1-7f3a.jsonl.sealed'
    """
    folder, _, name = place.rpartition("/")
    return f"{folder}/{timeline_path(PurePosixPath(name)).name}"
