"""Contents and names of the IR's attributes, most of them plain data. Imports no operations."""
