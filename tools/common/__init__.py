"""What all tools do: read their flags, run in a child process, read and write files, and tell of errors."""
