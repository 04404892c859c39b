"""The databases that calls can be kept in, a file each."""
