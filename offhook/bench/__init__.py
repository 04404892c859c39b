"""Benchmarks for sizing a machine: ``offhook bench NAME``, each with a peer in the same run."""
