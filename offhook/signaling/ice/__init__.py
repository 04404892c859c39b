"""ICE on one port for all calls: demultiplexing, ICE-TCP, restart."""
