"""What Twilio does for a caller, for calls that a program of ours makes to an edge."""
