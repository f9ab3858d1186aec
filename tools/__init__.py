"""Command-line tools: `pw_<tool>.py` has the flags, `<tool>_driver.py` does what they ask for."""
