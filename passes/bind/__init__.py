"""Says which host each slice is on, and splits a program into what each host does. Imports `passes.util`."""
