"""Customers who share a server: their lines, and what their keys show."""
