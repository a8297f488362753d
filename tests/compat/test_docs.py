"""The page on moving from AllenNLP is true: its Python runs."""

import re
import shutil
from pathlib import Path

import torch

from torchelmo.compat.allennlp import Elmo

PAGE = Path(__file__).parent.parent.parent / "docs" / "allennlp.md"


def test_python_blocks_run_in_order(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, name in zip(files, ("options.json", "weights.hdf5")):
        shutil.copy(file, name)
    torch.save(Elmo(*files, 1).state_dict(), "allennlp_elmo.pt")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"allennlp.md, Python block {number}", "exec"), namespace)
    assert Path("elmo.pt").exists()
    assert [tuple(r.shape) for r in namespace["output"]["elmo_representations"]] == [(2, 4, 12)] * 2
    assert namespace["output"]["mask"].dtype == torch.bool
