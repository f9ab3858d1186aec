"""Modules as text, as bytecode, and the dialect as IRDL."""
