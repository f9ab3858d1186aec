"""Branches while a program is in `@main`: opened, tagged and predicated. Imports `passes.analysis`."""
