"""What English reads in words."""
