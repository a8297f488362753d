"""torchelmo analyse usages and change."""

import json
import re

import numpy as np
import pytest
from facts import mentions
from tiny_lm import tiny_lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "model"
    tiny_lm().save(path)
    return path


@pytest.fixture
def files(tmp_path):
    (tmp_path / "old.txt").write_text("The bow. A rose. A bow! The bow, the rose and a rose.\n", encoding="utf-8")
    (tmp_path / "new.txt").write_text("My bow is here. Rose rose. A bow. The bow rose, a rose!\n", encoding="utf-8")
    (tmp_path / "targets.txt").write_text("bow\nrose\nquiver\n", encoding="utf-8")
    return tmp_path


def test_usages_and_then_change(call, folder, files):
    for name in ("old", "new"):
        arguments = [files / f"{name}.txt", "--targets", files / "targets.txt", "--out", files / f"{name}.npz"]
        found = call("analyse", "usages", *arguments, "--model", folder)
        assert found.code == 0, found.err
        assert "6 usages of 2 words" in found.out
        assert "quiver" in found.err
    with np.load(files / "old.npz") as usages:
        assert usages["bow"].shape == (3, 12)
    gold = files / "graded.txt"
    gold.write_text("rose\t0.5\nbow\t0.9\n", encoding="utf-8")
    for method in ("prt", "apd", "jsd"):
        options = ["--method", method, "--gold", gold, "--json", "--out", files / "answer.txt"]
        found = call("analyse", "change", files / "old.npz", files / "new.npz", *options)
        assert found.code == 0, found.err
        *rows, agreement = map(json.loads, found.out.splitlines())
        assert sorted(row["word"] for row in rows) == ["bow", "rose"]
        assert rows[0]["score"] >= rows[1]["score"]
        assert rows[0]["usages_first"] == rows[0]["usages_second"] == 3
        assert agreement["words"] == 2
        assert agreement["spearman"] in (-1.0, 1.0) or rows[0]["score"] == rows[1]["score"]
        answer = [line.split("\t") for line in (files / "answer.txt").read_text(encoding="utf-8").splitlines()]
        assert [word for word, _ in answer] == [row["word"] for row in rows]
        assert float(answer[0][1]) == pytest.approx(rows[0]["score"], abs=1e-5)
    found = call("analyse", "change", files / "old.npz", files / "new.npz", "--gold", gold)
    assert found.out.startswith("word\tscore\tusages_first\tusages_second\n")
    assert "Spearman" in found.err


def test_plots(call, folder, files):
    pytest.importorskip("matplotlib")
    for name in ("old", "new"):
        arguments = [files / f"{name}.txt", "--targets", files / "targets.txt", "--out", files / f"{name}.npz"]
        assert call("analyse", "usages", *arguments, "--model", folder).code == 0
    usages = [files / "old.npz", files / "new.npz"]
    assert call("analyse", "change", *usages, "--plot", files / "ranking.png").code == 0
    assert call("analyse", "change", *usages, "--plot", files / "bow.svg", "--word", "bow").code == 0
    assert (files / "ranking.png").stat().st_size > 1000
    assert "bow" in (files / "bow.svg").read_text(encoding="utf-8")
    found = call("analyse", "change", *usages, "--plot", files / "x.png", "--word", "arrow")
    assert found.code == 1
    assert re.search(mentions("arrow", "old.npz", "new.npz"), found.err)
    found = call("analyse", "change", *usages, "--word", "bow")
    assert found.code == 2
    assert re.search(mentions("--word", "--plot"), found.err)


def test_wrong_calls_end_before_the_work(call, folder, files):
    arguments = ["analyse", "usages", "--targets", files / "targets.txt", "--model", folder]
    found = call(*arguments, "-", "--out", files / "u.npz")
    assert found.code == 2
    found = call(*arguments, files / "none.txt", "--out", files / "u.npz")
    assert found.code == 2
    assert re.search(mentions("none.txt"), found.err)
    found = call(*arguments, files / "old.txt", "--out", files / "u.txt")
    assert found.code == 2
    assert re.search(mentions("u.txt", ".npz"), found.err)
