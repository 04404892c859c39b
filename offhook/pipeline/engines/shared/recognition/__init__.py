"""What recognition engines share: their streams, in this process and from another."""
