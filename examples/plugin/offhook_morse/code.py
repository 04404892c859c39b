"""Morse code (ITU-R M.1677-1)."""

LETTERS = (
    "a.- b-... c-.-. d-.. e. f..-. g--. h.... i.. j.--- k-.- l.-.. m-- n-. o--- p.--. q--.- r.-. "
    "s... t- u..- v...- w.-- x-..- y-.-- z--.. "
    "0----- 1.---- 2..--- 3...-- 4....- 5..... 6-.... 7--... 8---.. 9----."
)
SIGNS = {sign[0]: sign[1:] for sign in LETTERS.split()}
CHARACTERS = {code: character for character, code in SIGNS.items()}
UNIT_MS = 60
"""A dot; a dash is three, as is the pause after a letter; a word is followed by seven."""
