"""Command-line tools: `pw_<tool>.py` has the flags of one, `drivers/<tool>.py` its work."""
