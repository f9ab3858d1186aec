"""Inputs of the tools: programs, bundles and schedules, and arguments as text and in files."""
