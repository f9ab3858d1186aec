"""What ran where and when in steps of a program: events, the files that hold them, and how long things took.

It is here and not in the runtime because schedules are made of measured times.
"""
