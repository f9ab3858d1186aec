"""XLA programs of clients on hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import override

import msgspec

from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.hosted.foreign_programs import ReloadedProgram
from pathways.runtime.proxy.hosted.hosts_engine import HostsEngine
from pathways.runtime.proxy.loading.xla_program import XlaProgram
from pathways.runtime.proxy.wire.statuses import status_of
from pathways.runtime.proxy.worker.kinds import DETAILS
from pathways.runtime.proxy.worker.xla_programs import XlaDetails


@dataclasses.dataclass(frozen=True, eq=False)
class HostedXlaProgram(XlaProgram):
    """XLA program on the hosts of an island."""

    executable: ReloadedProgram
    engine: HostsEngine

    @override
    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        try:
            values = self.values_of(arguments)
            donated = set(self.donated) - set(undonated)
            for number in set(self.donated) - donated:
                spec, value = values[number]
                values[number] = spec, self.engine.copy_of(spec, value)
            operands = [self.engine.operand(value) for _, value in values]
            results = self.executable.current().run(operands, [values[number][1] for number in donated])
        except Exception as error:
            return self.fail(status_of(error))
        return [ProxyArray(spec, value) for spec, value in zip(self.results, results, strict=True)]

    @override
    def text(self) -> str:
        return self._details().text

    @override
    def costs(self) -> dict[str, float]:
        return self._details().costs

    def _details(self) -> XlaDetails:
        program = self.executable.current().program
        hosts = program.hosts if self.engine.session.owns_workers else program.gangs[0].hosts
        _, details = self.engine.session.load_foreign(self.name, hosts[:1], DETAILS, b"", program.number)
        return msgspec.msgpack.decode(details[0].facts, type=XlaDetails)
