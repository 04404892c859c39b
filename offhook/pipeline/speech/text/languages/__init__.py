"""What ten other languages read in words."""
