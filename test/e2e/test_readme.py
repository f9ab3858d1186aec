"""The program that README.md shows runs and prints what its comment says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_program_of_readme():
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"\[[\d., ]*\]", program.rpartition("#")[2])
    assert re.findall(r"\[[\d., ]*\]", done.stdout) == promised
