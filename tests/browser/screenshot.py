"""The picture of the page in the README: a real call to the front desk, in Chromium.

``python -m tests.browser.screenshot docs/images/page.png``; needs node, npm and Chromium, and the
packages of ``package-lock.json`` (``npm ci`` in this folder).
"""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.browser.conftest import BROWSERS, HERE, microphone, serving

SCRIPT = (7.0, "Where are you?", 14.0, "What are your opening hours?", 60.0)


async def main(picture: Path) -> None:
    chromium = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        wav = await microphone(Path(folder) / "caller.wav", SCRIPT)
        async with serving() as server:
            options = {"chromium": chromium, "url": f"{server.url}/", "microphone": str(wav)}
            options["picture"] = str(picture)
            process = await asyncio.create_subprocess_exec(
                "node", "screenshot.mjs", json.dumps(options), cwd=HERE
            )
            if await process.wait():
                sys.exit("no picture was made")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve()))
