"""Benchmarks of offhook, a package of their own: `offhook bench NAME`."""

import offhook as offhook  # before numpy, whose matrix library then has one thread, as in a server
