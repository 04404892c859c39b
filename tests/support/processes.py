"""Whether a process that is not this one's child has ended."""

from pathlib import Path


def gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
