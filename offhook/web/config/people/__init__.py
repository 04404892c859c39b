"""People with whom agents connect callers."""
