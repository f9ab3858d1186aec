"""Binding of slices to hosts, and the split of a program over hosts. Imports `passes.schedule.memory`."""
