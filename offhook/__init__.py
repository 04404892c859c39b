"""offhook: a self-hosted real-time voice server.

Rooms, and who may look into whom: ``media`` imports nothing of ours; ``signaling``,
``telephony`` and ``pipeline`` import ``media`` and not each other; ``web`` builds things and
imports all.
"""

import os

# Before numpy is first imported: its matrix library would start a thread a core for the small
# fits of the echo detector, and take three times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.1.0"
