"""What must hold between the operations of a program, and the order in which they run."""
