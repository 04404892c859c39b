"""The command line of a benchmark."""

import argparse


def command(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser for `offhook bench NAME`, the description as its lines are."""
    return argparse.ArgumentParser(
        prog=f"offhook bench {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def numbers(text: str) -> list[int]:
    """Reads "1,10,50"."""
    return [int(number) for number in text.split(",")]
