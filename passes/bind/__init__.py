"""Binds slices to hosts, and splits a program into what each host does. Imports `passes.schedule.memory`."""
