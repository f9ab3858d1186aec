"""Lowering of traced modules without devices: their forms, warnings about them, and bundles."""
