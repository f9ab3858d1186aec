"""Place phase: makes computations of what has a slice, and inserts transfers. Imports `passes.import_`."""
