"""`python -m offhook`: the command line."""

import sys

from offhook.web.app.cli.main import main

sys.exit(main())
