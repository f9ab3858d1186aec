"""Place phase: assigns slices to glue, outlines computations, inserts transfers. Imports `passes.import_`."""
