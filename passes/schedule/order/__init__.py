"""Orders of the work of each slice, by a policy, a file or a search. Imports `passes.schedule.search`."""
