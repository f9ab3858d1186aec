"""Relations between the operations of a program, and the proof of the order in which they run."""
