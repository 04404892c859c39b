"""How the configuration is read, and how its faults are described."""
