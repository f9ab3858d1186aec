"""Base, registry, text form and driver of passes. Imports no other room of `passes`."""
