"""What attributes of the IR hold, and what they are called: most of it plain data. Imports no operations."""
