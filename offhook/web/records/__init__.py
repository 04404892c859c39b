"""What is kept of every call: a row, its events, and its words to search in."""
