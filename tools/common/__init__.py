"""Common code of all tools: flags, child processes, files, and errors."""
