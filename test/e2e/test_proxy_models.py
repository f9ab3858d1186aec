"""Models of JAX's libraries, and rarer operations, behind the proxy: each equals local JAX bit by bit."""

from __future__ import annotations

from typing import Any

import jax
import proxy_models
import proxy_programs
import pytest

import pathways.proxy

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of all models, from one process that uses a server."""
    with pathways.proxy.serve(devices=jax.devices("cpu")) as server:
        return proxy_programs.run_proxied(server, proxy_models.__file__, tmp_path_factory.mktemp("proxied"))


@pytest.mark.parametrize("name", proxy_models.MODELS)
def test_equals_local_jax(name: str, proxied: dict[str, Any]) -> None:
    proxy_programs.assert_equal(proxied[name], proxy_models.MODELS[name])
