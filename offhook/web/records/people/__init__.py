"""What people of a team have of calls: their messages, and what their desks show."""
