"""What the tools do: a module of the name of each, and what it alone needs."""
