"""`python -m offhook`: the command line."""

import sys

from offhook.web.cli.main import main

sys.exit(main())
