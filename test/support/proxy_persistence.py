"""Checkpoints of Orbax whose arrays a server saves and restores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Environments of older releases of JAX have no Pathways.
    from pathways.proxy import ProxyServer

PROGRAM = """if True:
    import datetime, sys
    import jax, jax.numpy as jnp, numpy as np
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec as P
    from orbax.checkpoint import type_handlers
    from orbax.checkpoint._src.serialization.cloud_pathways_array_handler import CloudPathwaysArrayHandler

    # As `pathwaysutils.initialize` does with ENABLE_PATHWAYS_PERSISTENCE=1.
    handler = CloudPathwaysArrayHandler(timeout=datetime.timedelta(minutes=1))
    type_handlers.register_type_handler(jax.Array, handler, override=True)
    saver = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    mesh = jax.make_mesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)
    turned = jax.make_mesh((2, 4), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)
    place = lambda spec, mesh=mesh: NamedSharding(mesh, spec)
    if sys.argv[1] == "save":
        state = {
            "weights": {"one": jax.device_put(jnp.arange(64.0).reshape(8, 8), place(P("x", "y")))},
            "moment": jax.device_put(jnp.arange(16, dtype=jnp.bfloat16), place(P("y"))),
            "step": jax.device_put(jnp.int32(7), place(P())),
        }
        saver.save(sys.argv[2], state)
        try:
            saver.save(sys.argv[3], state)
        except jax.errors.JaxRuntimeError as error:
            print(error)
    else:
        given = lambda shape, dtype, spec: ocp.ArrayRestoreArgs(
            global_shape=shape, dtype=dtype, sharding=place(spec, turned)
        )
        args = {
            "weights": {"one": given((8, 8), jnp.float32, P("y", None))},
            "moment": given((16,), jnp.bfloat16, P(("x", "y"))),
            "step": given((), jnp.int32, P()),
        }
        state = saver.restore(sys.argv[2], ocp.args.PyTreeRestore(restore_args=args))
        same = (np.asarray(state["weights"]["one"]).ravel() == np.arange(64)).all()
        print(same, np.asarray(state["moment"], np.float32).sum(), int(state["step"]) + 1)
        print(state["weights"]["one"].sharding == place(P("y", None), turned))
    """


def run(server: ProxyServer, *arguments: str | Path) -> str:
    """Saves (`save FOLDER FORBIDDEN`) or restores (`restore FOLDER`), and returns the output."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    environment = os.environ | server.environment | {"ENABLE_PATHWAYS_PERSISTENCE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
