"""What controller and workers say to each other, as messages and as bytes, and the handshake before it.

Imports what is left of `runtime.hosts`.
"""
