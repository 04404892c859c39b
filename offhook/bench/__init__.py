"""Benchmarks: ``offhook bench NAME``, each beside its peer in one run."""
