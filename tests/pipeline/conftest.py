"""Without a GPU the Triton kernels run in its interpreter, which is chosen when it is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
