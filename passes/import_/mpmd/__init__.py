"""Imports programs of Shardy's MPMD compiler, which come partitioned: fragments on meshes, and transfers."""
