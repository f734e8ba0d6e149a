"""A toy job that uses every part of the run and finishes in a blink (Nobody, 2024)."""
