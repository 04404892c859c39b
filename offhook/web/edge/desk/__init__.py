"""The desk: a phone of an extension, in a browser."""
