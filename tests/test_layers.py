"""Imports point down, torch stays in its layer, and the public surface is what it was."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mpload

PACKAGE = Path(mpload.__file__).parent
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = {
    name.strip(): height
    for height, layer in enumerate(reversed(CONTRACTS[0]["layers"]))
    for name in layer.replace("|", ":").split(":")
}
WITHOUT_TORCH = {name.removeprefix("mpload.") for name in CONTRACTS[1]["source_modules"]} | {"cli"}
PUBLIC = [
    "BlockShuffle",
    "ErrorPolicy",
    "FolderOptions",
    "ImageDecoder",
    "Index",
    "MPDataset",
    "MPLoader",
    "MploadError",
    "MploadWarning",
    "RandomResizedCrop",
    "RawBytes",
    "Record",
    "ResizeCenterCrop",
    "Sequential",
    "Shuffle",
    "Span",
    "Topology",
    "build_index",
    "detect_topology",
    "merge_indexes",
    "open_index",
]


def faults(path: Path, layer: str) -> list[str]:
    """Return the imports of one file that its layer does not allow."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            top, _, rest = module.partition(".")
            if top == "torch" and layer in WITHOUT_TORCH:
                found.append(f"{path.name} imports torch")
            target = rest.partition(".")[0]
            if top == "mpload" and target and target != layer and LAYERS[target] > LAYERS[layer]:
                found.append(f"{path.name} imports {module}, which is above it")
    return found


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if layer_of(path) not in {"__init__", "__main__"}]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    if "cli" in path.parts:
        return  # the top: it may import all, and what it must not load at start is tested below
    assert not faults(path, layer_of(path))


@pytest.mark.parametrize("line", ["import torch", "from mpload.dataset import MPDataset", "import mpload.index.scan"])
def test_an_upward_import_is_a_fault(tmp_path: Path, line: str) -> None:
    planted = tmp_path / "order.py"
    planted.write_text((PACKAGE / "order.py").read_text() + f"\n\ndef late() -> None:\n    {line}\n")
    assert faults(planted, "order")
    assert not faults(PACKAGE / "order.py", "order")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_mpload_loads_nothing_heavy() -> None:
    assert loaded_by("import mpload").isdisjoint({"torch", "pyarrow", "numpy", "cv2"})


@pytest.mark.parametrize("module", ["cli.main", "pipeline", "index.opening"])
def test_what_runs_without_torch_starts_without_torch(module: str) -> None:
    assert "torch" not in loaded_by(f"import mpload.{module}")


@pytest.mark.parametrize("module", ["pipeline", "index.index", "order", "sharding"])
def test_what_workers_need_starts_without_pyarrow(module: str) -> None:
    assert "pyarrow" not in loaded_by(f"import mpload.{module}")


def test_the_public_surface_is_what_it_was() -> None:
    assert sorted(mpload.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(mpload, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpload.nothing  # noqa: B018
