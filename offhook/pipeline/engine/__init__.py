"""What runs a speech model for many calls at once: streams, pages, schedule, graphs."""
