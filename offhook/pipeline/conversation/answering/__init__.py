"""Who or what has answered a call that we placed: by sound, by words, and what follows from it."""
