"""What developers measure with: `python -m benchmarks NAME`, from a checkout."""
