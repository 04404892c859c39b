"""What people of a team have of calls: their messages, their phones, and what their desks show."""
