"""What is done on a condition: opened where a program is imported, put together where it is placed."""
