"""Passes of `plugins.mlir`: one that works, and mistakes."""

import dataclasses

from jaxlib.mlir import ir

from pathways.extending import FORMS, Pass, main_function, option, remark


@dataclasses.dataclass(frozen=True)
class RemarkWord(Pass):
    """Remark at the program."""

    name = "demo-remark"
    input_forms = (FORMS["placed"],)
    word: str = option("hello", "the word")

    def run(self, module: ir.Module) -> None:
        remark(main_function(module), self.word)


@dataclasses.dataclass(frozen=True)
class Ours(RemarkWord):
    """Pass with the name of a pass of the compiler."""

    name = "pw-dce"


@dataclasses.dataclass(frozen=True)
class Capital(RemarkWord):
    """Pass with a name that no flag has."""

    name = "RemarkWord"


@dataclasses.dataclass(frozen=True)
class Formless(RemarkWord):
    """Pass that accepts no form."""

    name = "demo-formless"
    input_forms = ()


@dataclasses.dataclass(frozen=True)
class Listed(RemarkWord):
    """Pass with an option of a type that no flag has."""

    name = "demo-listed"
    words: tuple[str, ...] = option(("a", "b"), "the words")


class Bare(RemarkWord):
    """Pass that is not a dataclass itself."""

    name = "demo-bare"
