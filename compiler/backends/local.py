"""The devices of this process."""

from __future__ import annotations

from collections.abc import Mapping

from pathways.compiler.backends.backend import Backend, Scheduled
from pathways.compiler.backends.local_executable import LocalExecutable
from pathways.runtime.local.load import load
from pathways.runtime.resources.manager import Binding


class LocalBackend(Backend):
    """The devices of this process; see `Backend`."""

    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> LocalExecutable:
        """See `Backend.load`."""
        executable = load(
            program.plan,
            bindings,
            result_avals=program.interface.out_avals,
            callbacks=program.callbacks,
            argument_names=program.interface.argument_paths,
            code=code,
        )
        return LocalExecutable(executable, program.interface, program.signature, program.keepalive)
