"""What developers measure with: `python -m benchmarks NAME`, from a checkout."""

import offhook as offhook  # before numpy, whose matrix library then has one thread, as in a server
