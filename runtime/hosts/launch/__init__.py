"""What the user says of workers, who gets them to run, and where they listen.

Imports `protocol`.
"""
