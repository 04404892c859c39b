"""How a text is read out: numbers, dates and money as people say them, and in which language."""
