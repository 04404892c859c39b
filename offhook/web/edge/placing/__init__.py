"""Calls that are placed: what is asked for, checked, and placed by whichever way."""
