"""The notebook runs from its first cell to its last, and shows what it says it shows."""

import json
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "checkpoints.ipynb"


def test_it_is_stored_without_outputs_and_without_paths():
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    assert 8 <= len(cells) <= 14
    for cell in cells:
        assert cell["metadata"] == {}
        assert not cell.get("outputs")
        assert not cell.get("execution_count")
    assert not any(place in text for place in ("/home", "/root", "/tmp", "/work", "/Users", "C:\\"))


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """The cells after a run in a folder of their own, beside nothing but the series' maker."""
    import nbformat
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside this one
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the notebook's own folder
    for name in (NOTEBOOK.name, "tiny_series.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    notebook = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def test_it_runs_and_shows_tables_and_a_figure(executed):
    streams = [output.text for outputs in executed.values() for output in outputs if "text" in output]
    assert streams == []
    shown = {name: outputs[0].data for name, outputs in executed.items() if outputs}
    assert list(shown) == ["records", "figure", "fits", "cosines", "report"]
    assert "steps 0 to 20 (11 checkpoints)" in " ".join(shown["records"]["text/html"].split())
    assert "layer.3" in shown["records"]["text/html"]
    assert shown["records"]["text/plain"].startswith("Trace(")
    assert len(shown["figure"]["image/png"]) > 10_000
    assert "sqrt2" in shown["fits"]["text/html"]
    assert shown["fits"]["text/plain"].startswith("Fits(9 laws on 11 points")
    assert shown["cosines"]["text/plain"].startswith("{2: 0.9")
    assert "srcdoc" in shown["report"]["text/html"]
    assert "How the weights grow" in shown["report"]["text/html"]
