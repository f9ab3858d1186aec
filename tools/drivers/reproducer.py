"""Reproducers of failed pipelines, as `mlir-opt` writes them: a module, with the pipeline in its metadata."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from pathways.passes.manager.text import Item, pipeline_text
from pathways.tools.common import supervisor
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.common.source import Source

_SECTION = re.compile(rb"\{-#(?:(?!#-\}).)*?\bmlir_reproducer\s*:\s*\{(.*?)\}\s*\}\s*#-\}\s*\Z", re.DOTALL)
_PIPELINE = re.compile(rb'\bpipeline\s*:\s*"((?:[^"\\\n]|\\.)*)"')
_VERIFY_EACH = re.compile(rb"\bverify_each\s*:\s*(true|false)\b")
_ESCAPE = re.compile(r'\\(?:([0-9A-Fa-f]{2})|(["\\nt]))')


@contextlib.contextmanager
def writing_on_failure(
    path: str | None, module: ir.Module, items: Sequence[Item], verify_each: bool
) -> Iterator[None]:
    """Writes a reproducer to a file if the block fails, or crashes the process.

    Args:
      path: the file; None for none.
      module: the module in front of the passes.
      items: the passes.
      verify_each: whether they are verified.

    Raises:
      UserError: the file cannot be written.
    """
    if path is None:
        yield
        return
    pending = supervisor.pending(path)
    write_output(str(pending), _text(module, items, verify_each))
    supervisor.keep_after_crash(path)
    try:
        yield
    except Exception:
        pending.replace(path)
        print(f"pw-opt: note: pipeline failed: reproducer generated at '{path}'", file=sys.stderr)
        raise
    finally:
        supervisor.keep_after_crash("")
        pending.unlink(missing_ok=True)


def _text(module: ir.Module, items: Sequence[Item], verify_each: bool) -> bytes:
    text = module.operation.get_asm(binary=True)
    escaped = "".join(
        c if c.isprintable() and c not in '"\\' else f"\\{ord(c):02X}" for c in pipeline_text(items)
    )
    lines = [
        "",
        "{-#",
        "  external_resources: {",
        "    mlir_reproducer: {",
        f'      pipeline: "{escaped}",',
        "      disable_threading: true,",
        f"      verify_each: {str(verify_each).lower()}",
        "    }",
        "  }",
        "#-}",
        "",
    ]
    return text.rstrip(b"\n") + b"\n" + "\n".join(lines).encode()


def split(source: Source) -> tuple[Source, str, bool]:
    """Returns the module of a reproducer, its pipeline as text, and whether each pass is verified.

    Raises:
      UserError: the source is not a reproducer.
    """
    section = None if source.is_bytecode else _SECTION.search(source.data)
    pipeline = section and _PIPELINE.search(section[1])
    if not section or not pipeline:
        raise UserError(f"'{source.name}' is not a reproducer: it has no pipeline in `mlir_reproducer`")
    verify = _VERIFY_EACH.search(section[1])
    text = _ESCAPE.sub(_unescaped, pipeline[1].decode(errors="replace"))
    return Source(source.name, source.data[: section.start()]), text, verify is None or verify[1] == b"true"


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else {"n": "\n", "t": "\t"}.get(escape[2], escape[2])
