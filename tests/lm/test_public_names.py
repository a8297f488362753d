"""torchelmo.lm exports its functions, and imports them at first use."""

import subprocess
import sys

import torchelmo.lm


def test_every_name_is_there():
    assert {name for name in torchelmo.lm.__all__ if callable(getattr(torchelmo.lm, name))} == set(torchelmo.lm.__all__)
    assert set(torchelmo.lm.__all__) <= set(dir(torchelmo.lm))


def test_importing_the_package_does_not_import_pytorch():
    code = "import sys, torchelmo.lm; assert 'torch' not in sys.modules; torchelmo.lm.prepare.__call__"
    subprocess.run([sys.executable, "-c", code], check=True)
