"""Lexer of MLIR text, as far as tools on text need it: brackets, strings, names."""

from __future__ import annotations

import re

# An arrow is one token, so that its `>` closes no bracket; a string may lack its end.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|->|.', re.DOTALL)
_OPENING, _CLOSING = "<({[", ">)}]"


def split(text: str, separator: str) -> list[str]:
    """Returns the pieces between separators outside of brackets and strings; none of an empty text."""
    pieces: list[str] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word == separator and depth == 0:
            pieces.append(text[start : token.start()])
            start = token.end()
        elif word in _OPENING:
            depth += 1
        elif word in _CLOSING:
            depth -= 1
    return [*pieces, text[start:]] if text.strip() else []
