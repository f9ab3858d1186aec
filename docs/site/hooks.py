"""Hooks of MkDocs: a lexer of MLIR for Pygments, which has none, and diagrams without a server elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pygments.lexer import RegexLexer, bygroups, words
from pygments.lexers import LEXERS
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

KEYWORDS = (
    *("module", "return", "attributes", "true", "false"),
    *("unit", "loc", "dense", "array", "private", "public"),
)


class MlirLexer(RegexLexer):
    """Values, symbols, attributes, types, operations, strings and comments: what stands in the manual."""

    name = "MLIR"
    aliases = ("mlir",)
    filenames = ("*.mlir",)
    tokens = {
        "root": [
            (r"\s+", Whitespace),
            (r"//.*?$", Comment.Single),
            (r'(")([a-z_]\w*\.[\w.]+)(")(?=\()', bygroups(Punctuation, Name.Function, Punctuation)),
            (r'"(\\.|[^"\\])*"', String),
            (r"%[\w$.-]+(#\d+)?", Name.Variable),
            (r"@[\w$.-]+", Name.Label),
            (r"\^[\w$.-]+", Name.Label),
            (r"[#!][\w$.]+", Name.Decorator),
            (r"\b(tensor|memref|vector|tuple|complex)(?=<)", Keyword.Type),
            (r"(?<=[x<:>( ])([su]?i\d+|bf16|tf32|f8\w+|f\d+|index|none)\b", Keyword.Type),
            (words(KEYWORDS, prefix=r"\b", suffix=r"\b(?![.\w])"), Keyword),
            (r"\b[a-z_]\w*\.[\w.]+", Name.Function),
            (r"-?\d+(\.\d+)?([eE][+-]?\d+)?|0x[0-9a-fA-F]+", Number),
            (r"[A-Za-z_][\w$]*", Name.Attribute),
            (r"->|\.\.\.|[=:+*/?-]", Operator),
            (r"[{}()\[\]<>,|]", Punctuation),
            (r".", Punctuation),
        ]
    }


def on_startup(**_: object) -> None:
    """Makes the lexer known by its name."""
    LEXERS["MlirLexer"] = (__name__, "MLIR", ("mlir",), ("*.mlir",), ())


def on_post_page(output: str, *, config: Any, **_: object) -> str:
    """Gives pages with diagrams the Mermaid of the site, where it has one; the theme fetches it otherwise."""
    if 'class="mermaid"' not in output or not (Path(config.docs_dir) / "mermaid.min.js").exists():
        return output
    return output.replace("</head>", '<script src="mermaid.min.js"></script></head>')
