"""Imports point down, torch stays in its layer, and the public surface is what it was."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.util import resolve_name
from pathlib import Path

import pytest

import mpload

PACKAGE = Path(mpload.__file__).parent
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ROWS = list(reversed(CONTRACTS[0]["layers"]))
LAYERS = {name: height for height, row in enumerate(ROWS) for name in row.replace("|", " ").replace(":", " ").split()}
WITHOUT_TORCH = {name.removeprefix("mpload.") for name in CONTRACTS[1]["source_modules"]}
LOWEST_WITH_TORCH = "topology"
PUBLIC = [
    "BlockShuffle",
    "DevicePrefetcher",
    "ErrorPolicy",
    "FolderOptions",
    "GpuDecode",
    "ImageDecoder",
    "Index",
    "JsonLinesWriter",
    "Limits",
    "MPDataset",
    "MPLoader",
    "MemoryBudget",
    "MemoryMonitor",
    "MploadError",
    "MploadWarning",
    "NumpyDecoder",
    "PackOptions",
    "PartialCache",
    "PerSample",
    "PrometheusWriter",
    "RandomResizedCrop",
    "RawBytes",
    "Record",
    "ResizeCenterCrop",
    "Sequential",
    "Shuffle",
    "Span",
    "TensorBoardWriter",
    "Topology",
    "build_index",
    "detect_topology",
    "merge_indexes",
    "open_index",
    "pack_index",
    "verify_pack",
]


def imported(node: ast.AST, package: str) -> list[str]:
    """Return what one statement imports, with `from mpload import x` and `from . import x` as the modules they mean."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = resolve_name("." * node.level + (node.module or ""), package)
    if module != "mpload":
        return [module]
    return [mpload._MODULES.get(alias.name, f"mpload.{alias.name}") for alias in node.names]


def faults(source: str, module: str) -> list[str]:
    """Return the imports in the `source` of `mpload.<module>` that its layer does not allow."""
    layer = module.partition(".")[0]
    package = f"mpload.{module}".rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node, package):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top == "torch" and layer in WITHOUT_TORCH:
                found.append(f"mpload.{module} imports torch")
            if top != "mpload" or target in {"", "__version__", layer}:
                continue
            if target not in LAYERS:
                found.append(f"mpload.{module} imports {name}, which is in no layer")
            elif LAYERS[target] > LAYERS[layer]:
                found.append(f"mpload.{module} imports {name}, which is above it")
            elif LAYERS[target] == LAYERS[layer] and "|" in ROWS[LAYERS[layer]]:
                found.append(f"mpload.{module} imports {name}, which stands beside it")
    return found


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"  # it names all layers, lazily
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_below_it(module: str) -> None:
    assert not faults(MODULES[module].read_text(), module)


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    assert {module.partition(".")[0] for module in MODULES} == set(LAYERS)


@pytest.mark.parametrize("package", sorted({module.partition(".")[0] for module in MODULES if "." in module}))
def test_the_map_of_a_package_names_each_of_its_modules(package: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[f"{package}.__init__"].read_text())) or ""
    named = [line.split()[0] for part in text.split("```")[1::2] for line in part.strip().splitlines()]
    there = [module.partition(".")[2] for module in MODULES if module.startswith(f"{package}.")]
    assert sorted(named) == sorted(set(there) - {"__init__"})


def test_every_layer_below_the_torch_layer_is_kept_from_torch() -> None:
    assert {name for name, height in LAYERS.items() if height < LAYERS[LOWEST_WITH_TORCH]} == WITHOUT_TORCH


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("order", "import torch"),
        ("order", "from torch.utils import data"),
        ("order", "import mpload.index.scan"),
        ("order", "from mpload.dataset import MPDataset"),
        ("order", "from mpload import dataset"),
        ("order", "from mpload import MPDataset"),
        ("order", "from . import dataset"),
        ("order", "from .dataset import MPDataset"),
        ("order", "import mpload.sketch"),
        ("index.scan", "from mpload.pipeline import Pipeline"),
        ("index.scan", "from .. import pipeline"),
        ("decode", "from mpload.augment import sample_rng"),
    ],
)
def test_an_import_that_breaks_the_layers_is_a_fault(module: str, line: str) -> None:
    source = MODULES[module].read_text()
    assert not faults(source, module)
    assert len(faults(f"{source}\n\ndef late() -> None:\n    {line}\n", module)) == 1


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


def test_every_name_that_the_readme_uses_is_there_in_a_fresh_interpreter() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"\bmpload(?:\.[A-Za-z_]\w*)+(?=\()", readme)))
    assert "mpload.decode.backend" in names
    for name in names:
        if name.count(".") == 1:
            assert hasattr(mpload, name.removeprefix("mpload."))
        else:  # the longer ones depend on what was imported before
            subprocess.run([sys.executable, "-c", f"import mpload; {name}"], check=True, timeout=60)


def test_the_public_surface_is_what_it_was() -> None:
    assert sorted(mpload.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(mpload, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mpload.nothing  # noqa: B018
