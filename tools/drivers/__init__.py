"""Work of the tools: a module for each, and the modules that it alone needs."""
