"""What keeping calls costs, and how fast they are found again."""
