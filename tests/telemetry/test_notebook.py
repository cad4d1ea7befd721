"""The repr of an index, a dataset, a loader and its statistics: one line, and a table in a notebook."""

from pathlib import Path

import pytest

import mpload
from mpload.memory.budget import MemoryBudget
from mpload.units import GIB, html_table

CELLS = [
    """
import time
import mpload

class Slow:
    def __len__(self):
        return 40

    def __getitem__(self, number):
        time.sleep(0.02)
        return number

loader = mpload.MPLoader(Slow(), batch_size=2, num_workers=0, topology=mpload.Topology())
""",
    "loader",
    "for batch in loader.progress():\n    pass",
    "loader.stats()",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for number in range(10):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    made = tmp_path / "<b>.txt"
    lines = "".join(f"{number}.bin\t0\n" for number in range(10))
    made.write_text(f"#mpload 1\n#columns image:path label:int\n{lines}")
    return made


def test_the_repr_of_an_index_shows_its_samples_columns_and_root(text: Path) -> None:
    index = mpload.open_index(text)
    assert repr(index) == f"<Index {text}: samples 10, columns image:path label:int, root {text.parent}>"


def test_the_repr_of_a_dataset_and_a_loader_shows_batch_size_order_epoch_workers_and_memory(text: Path) -> None:
    dataset = mpload.MPDataset(
        text, decode=mpload.RawBytes(), batch_size=4, shuffle=True, topology=mpload.Topology(), tail="drop"
    )
    dataset.set_epoch(3)
    facts = "samples 10, columns image:path label:int, batch size 4, order Shuffle(), tail drop, epoch 3"
    assert repr(dataset) == f"<MPDataset {text}: {facts}>"
    with mpload.MPLoader(dataset, num_workers=0, memory_budget="2GiB") as loader:
        assert repr(loader) == f"<MPLoader of {text}: {facts}, workers 0, memory at most 2.0 GiB>"
        next(iter(loader))
        assert "epoch 3 (1 of 2 batches)" in repr(loader)
        assert repr(loader.stats()).startswith("<LoaderStats: 4 samples in 1 batches")
        for each in (dataset.index, dataset, loader, loader.stats()):
            assert each._repr_html_().startswith("<table>")
            assert "<b>" not in each._repr_html_()
    assert "workers closed" in repr(loader)


def test_the_repr_of_a_budget_shows_a_readable_size() -> None:
    assert repr(MemoryBudget(total_bytes=4 * GIB)) == "MemoryBudget(4.0 GiB)"


def test_text_in_a_table_is_escaped() -> None:
    assert "<script>" not in html_table("<script>", {"<script>": "<script>"})


@pytest.mark.processes
def test_a_notebook_shows_tables_and_progress() -> None:
    pytest.importorskip("ipykernel")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    _, loader, progress, stats = ([output["data"] for output in cell.outputs] for cell in notebook.cells)
    assert "<td style='text-align: left'>Sequential()</td>" in loader[0]["text/html"]
    assert loader[0]["text/plain"].startswith("<MPLoader of Slow: samples 40, batch size 2")
    (bar,) = progress  # a single output, which was updated
    assert bar["text/html"].startswith("<progress value='20' max='20'></progress> 20/20 batches, ")
    assert "samples/s, waiting" in bar["text/html"]
    assert "40 samples in 20 batches" in stats[0]["text/html"]
