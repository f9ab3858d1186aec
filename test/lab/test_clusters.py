"""A controller and hosts on machines of their own: right values, whatever their network does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from lab import Lab
from sessions import Session, compiled_code

pytestmark = [pytest.mark.process, pytest.mark.needs("namespaces")]


def test_lab_training_equals_one_process_on_any_network():
    with Lab(machines=3, shared=compiled_code()) as lab, Session(lab) as session:
        session.check()
        lab.delay(20e-3)
        session.check()
        lab.set((), delay=1e-3, loss=0.01)
        session.check()
        lab.set((), delay=1e-3, loss=0.0, rate=10e6)
        session.check()


def test_lab_survives_a_cut_shorter_than_the_heartbeat():
    with Lab(machines=3, shared=compiled_code()) as lab, Session(lab, heartbeat=15) as session:
        # A step lasts long enough not to be over before the cut.
        lab.delay(20e-3)
        session.check()
        session.send("train", steps=3)
        time.sleep(0.1)
        lab.cut()
        time.sleep(5)
        lab.heal()
        answer = session.receive(60)
        assert answer.get("sum") == session.expected[2], answer
        assert answer["seconds"] > 5
        session.check()


def test_lab_refuses_a_stranger_that_relays_challenges():
    with (
        Lab(machines=4, shared=compiled_code()) as lab,
        Session(lab, [[1], [2]], ports=(7000, 7030)) as session,
    ):
        session.check()
        at = session.run("addresses")
        script = str(Path(__file__).with_name("stranger.py"))
        done = lab.run(
            3,
            [sys.executable, script, "0", "1", lab.address(0), at["data"][0], at["probe"][1], "7000", "7030"],
        )
        assert "challenged" in done.stdout, done
        assert "welcomed" not in done.stdout
        # The host whose process the stranger has ended is back.
        session.check()
        assert session.run("addresses")["pids"] != at["pids"]
        assert any(f"refused a connection from {lab.address(3)}" in line for line in session.errors)
