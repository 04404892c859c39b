"""Recordings in a bucket of S3, or of a server that speaks its protocol."""
