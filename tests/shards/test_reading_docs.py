"""What docs/export.md shows of reading an export runs, without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.train.exports import export_of
from tests.train.rows import episodes_of_one_call

DOCS = Path(__file__).parents[2] / "docs" / "export.md"


def test_the_example_reads_an_export_and_loads_no_torch(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?open_export.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    export_of([episodes_of_one_call([1.0, 0.0])], tmp_path / "out")
    command = f"{example}\nimport sys\nassert 'torch' not in sys.modules and 'sqlalchemy' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "call-0:0 4 2\ncall-1:0 4 2\n"
