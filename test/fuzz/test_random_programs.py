"""Sample of the programs of `make fuzz`, and tests of the harness: repeatable cases and kinds of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import preloaded
import pytest

pytestmark = pytest.mark.process

FUZZ = Path(__file__).parent
PROGRAMS, ON_HOSTS, TRAINED, SCHEDULES = 12, 6, 6, 60


def run(name: str, *flags: str) -> str:
    """Returns the output of a harness, which forks: JAX in the process of the tests forbids that."""
    done = preloaded.run(FUZZ / name, *flags, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_a_process(script: str, tmp_path: Path) -> Any:
    """Returns the value of `result` after a script."""
    path = tmp_path / "script.py"
    path.write_text(
        f"import json, sys\nsys.path.insert(0, {str(FUZZ)!r})\n{script}\nprint(json.dumps(result))\n"
    )
    done = preloaded.run(path, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.quick
def test_random_programs_equal_jit(tmp_path: Path):
    printed = run(
        "random_programs.py",
        *("--count", str(PROGRAMS), "--jobs", "2", "--keep", str(tmp_path), "--no-reduce"),
    )
    assert f"{PROGRAMS} programs" in printed


def test_random_programs_on_two_hosts_equal_jit(tmp_path: Path):
    printed = run(
        "random_programs.py",
        *("--hosts", "2", "--count", str(ON_HOSTS), "--jobs", "1", "--keep", str(tmp_path), "--no-reduce"),
    )
    assert f"{ON_HOSTS} programs" in printed


def test_random_training_on_replicas_equals_jit(tmp_path: Path):
    printed = run(
        "random_programs.py",
        *("--training", "--count", str(TRAINED), "--jobs", "2", "--keep", str(tmp_path), "--no-reduce"),
    )
    assert f"{TRAINED} programs" in printed


def test_random_schedules_are_accepted_if_they_can_run(tmp_path: Path):
    printed = run("random_schedules.py", "--count", str(SCHEDULES), "--jobs", "2", "--keep", str(tmp_path))
    assert f"{SCHEDULES} schedules" in printed


def test_random_programs_depend_on_their_numbers_alone(tmp_path: Path):
    script = """
from random_sketches import random_sketch
from random_training import random_training
from sketches import from_json, to_json

sketches = [random_sketch(0, n) for n in range(30)] + [random_training(0, n) for n in range(20)]
assert [from_json(to_json(sketch)) for sketch in sketches] == sketches
result = [to_json(sketch) for sketch in sketches]
"""
    first, second = in_a_process(script, tmp_path), in_a_process(script, tmp_path)
    assert first == second
    assert len(set(first)) == 50


def test_random_programs_have_verdicts_and_are_reduced(tmp_path: Path):
    script = """
import faulthandler, os
import random_programs, sketched, verdicts
from sketches import Apply, Input, Piece, Sketch

def crash(x, y, n):
    os.abort()

def hang(x, y, n):
    while True:
        pass

def fail(x, y, n):
    if not isinstance(sketched.maker, sketched.Plain):
        raise KeyError("x")
    return x

def other(x, y, n):
    return x if isinstance(sketched.maker, sketched.Plain) else x + 1

def cut(x, y, n):
    return x if type(sketched.maker) is sketched.Plain else x + 1

def build(maker, sketch, original=sketched.build):
    sketched.maker = maker
    return original(maker, sketch)

verdicts.build = build
ways = {"crash": crash, "hang": hang, "fail": fail, "other": other, "cut": cut, "same": lambda x, y, n: x}
sketched.operation = lambda name, mesh, constrain: ways[name]
inputs = (Input((4,), "float32"), Input((), "int32"))
piece = lambda name: Piece(0, (0,), (Apply(name, (-1, -1), 0),))

def kind_of(name):
    # The others may take long on a busy machine.
    random_programs.SECONDS = 4.0 if name == "hang" else 60.0
    return random_programs.verdict_of(Sketch(((1,),), inputs, (piece(name),), (2,))).kind

result = [kind_of(name) for name in ("crash", "hang", "fail", "other", "cut", "same")]
large = Sketch(((2,), (1,)), inputs, (piece("same"), piece("other"), piece("same")), (2, 3, 4), threads=2)
small = random_programs.reduced(large, random_programs.verdict_of(large))
result += [small.slices, len(small.inputs), len(small.pieces), small.threads]
"""
    kinds = ["crash", "hang", "traceback", "wrong", "both wrong", "ok"]
    assert in_a_process(script, tmp_path) == [*kinds, [[1], [1]], 1, 1, 1]


def test_random_training_is_reduced(tmp_path: Path):
    """One update differs without `zero1`, or on replicas at all, and is the only one left."""
    script = """
import random_programs, sketched, updates
from sketches import Apply, Input, MicrobatchLoop, Piece, Sketch, Training, Update

def build(maker, sketch, original=sketched.build):
    sketched.maker = maker
    return original(maker, sketch)

def bits(x, y, n):
    whole = isinstance(sketched.maker, sketched.Placed) and not sketched.maker.sketch.training.zero1
    return x * 1.0000001 + y if whole else x + y

def other(x, y, n):
    return x + y if isinstance(sketched.maker, sketched.Plain) else x + 2 * y

random_programs.SECONDS = 300.0  # A machine may be busy.
random_programs.judge.__globals__["build"] = build
for name, f in (("bits", bits), ("other", other)):
    updates.UPDATES[name] = updates.ELEMENTWISE[name] = f
inputs = (Input((4, 8), "float32", donated=True), Input((4, 8), "float32", state=True))
batch = Input((2, 8), "float32", cut=True)
piece = Piece(0, (2, 0), (Apply("matmul", (-1, -2), 0), Apply("sin", (-1, -1), 0)))
loop = MicrobatchLoop(2, "program", ("mean",), True)

def sketch_of(name):
    made = (
        Update(name, ("input", 1), ("gradient", 0), into=1),
        Update("descend", ("input", 0), ("update", 0), into=0),
    )
    training = Training(made, steps=2, zero1=True)
    return Sketch(((1,),), (*inputs, batch), (piece,), (3,), loop=loop, replicas=2, training=training)

verdicts = {name: random_programs.verdict_of(sketch_of(name)) for name in ("same", "bits", "other")}
result = [[verdict.kind, verdict.bucket] for verdict in verdicts.values()]
small = random_programs.reduced(sketch_of("bits"), verdicts["bits"])
result.append([[each.op for each in small.training.updates], len(small.inputs), small.training.steps])
"""
    ok, bits, other = ["ok", ""], ["wrong", "bits of zero1"], ["wrong", "values"]
    assert in_a_process(script, tmp_path) == [ok, bits, other, [["bits"], 2, 1]]


def test_random_programs_fail_with_a_worker_that_dies_or_stays(tmp_path: Path):
    script = """
import os, signal, subprocess, sys
import random_programs, sketched
from pathlib import Path
from pathways.runtime.clusters.connect import controller
from sketches import Apply, Input, Piece, Sketch

def program(maker, fun, original=sketched.Placed.program, **options):
    # Of the sketch "kill": one whose worker dies before its results are read.
    placed = original(maker, fun, **options)

    def call(*arguments):
        results = placed(*arguments)
        os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
        return results

    return call if maker.sketch.pieces[0].applies[0].op == "kill" else placed

def leave(x, y, n):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path("workers").write_text(json.dumps({other.pid: random_programs._started(other.pid)}))
    return x

sketched.Placed.program = program
random_programs._GOODBYE = 1.0
same = lambda x, y, n: x
ways = {"kill": same, "leave": leave, "same": same}
sketched.operation = lambda name, mesh, constrain: ways[name]
piece = lambda name: Piece(0, (0,), (Apply(name, (-1, -1), 0),))
sketches = [Sketch(((1,),), (Input((4,), "float32"),), (piece(n),), (1,)) for n in ("kill", "same", "leave")]
verdicts = dict(random_programs.run_programs(list(enumerate(sketches)), 1, random_programs.Workers(1)))
result = [verdicts[n].kind for n in range(3)]
"""
    assert in_a_process(script, tmp_path) == ["traceback", "ok", "left"]


def test_random_programs_are_wrong_if_any_call_differs(tmp_path: Path):
    script = """
import random_programs, sketched, verdicts
from sketches import Apply, Input, Piece, Sketch

def other(x, y, n):
    return x if isinstance(sketched.maker, sketched.Plain) else x + 1

def build(maker, sketch, original=sketched.build):
    sketched.maker = maker
    return original(maker, sketch)

verdicts.build = build
sketched.operation = lambda name, mesh, constrain: other
piece = Piece(0, (0,), (Apply("other", (-1, -1), 0),))
sketch = Sketch(((1,),), (Input((4,), "float32"),), (piece,), (1,), ahead=True)
result = random_programs.verdict_of(sketch).kind
"""
    assert in_a_process(script, tmp_path) == "wrong"


def test_random_programs_inline_unplaced_functions_for_jit(tmp_path: Path):
    """JAX finds a zero tangent for results of `jax.jit` around a reference, and only for those."""
    script = """
import random_programs
from sketches import Apply, Input, Piece, Sketch

written = Piece(None, (1, 2), (Apply("ref", (-2, -1), 8),))
looped = Piece(0, (3,), (Apply("sin", (-1, -1), 0),), beside="while")
inputs = (Input((), "float32"), Input((4,), "float32", state=True), Input((), "int8"))
result = random_programs.verdict_of(Sketch(((1,),), inputs, (written, looped), (4,), transform="vjp")).kind
"""
    assert in_a_process(script, tmp_path) == "both refuse"


def test_random_programs_keep_constraints_for_jit(tmp_path: Path):
    """Without a constraint JAX would find that a loop changes nothing, and differentiate it."""
    script = """
import random_programs
from sketches import Apply, Input, Piece, Sketch

piece = Piece(0, (0,), (Apply("constrain", (-1, -1), 2, ("while",)),))
sketch = Sketch(((1,),), (Input((4,), "float32"),), (piece,), (1,), transform="grad")
result = random_programs.verdict_of(sketch).kind
"""
    assert in_a_process(script, tmp_path) == "both refuse"
