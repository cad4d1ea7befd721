"""Imports point down only, only some packages may import torch, and no file is too long to read."""

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
BOTTOM = {"units", "native", "errors"}
GROUND = BOTTOM | {"plan", "memory", "storage", "images", "transport"}
LOADER = GROUND | {"index", "judgement", "telemetry", "samples", "device"}
MAY_IMPORT = {
    "errors": set(),
    "native": set(),
    "units": {"errors"},
    "plan": BOTTOM,
    "memory": BOTTOM,
    "storage": BOTTOM,
    "images": BOTTOM,
    "transport": BOTTOM,
    "index": BOTTOM | {"storage", "plan"},
    "judgement": BOTTOM | {"memory"},
    "telemetry": BOTTOM | {"transport", "memory", "judgement"},
    "ingest": BOTTOM | {"index", "storage", "images"},
    "samples": GROUND | {"index"},
    "device": BOTTOM | {"images", "plan"},
    "client": GROUND | {"index", "samples", "telemetry"},
    "loader": LOADER | {"client"},
    "servers": LOADER | {"loader", "client"},
    "tools": LOADER | {"loader", "ingest"},
    "ray": BOTTOM | {"storage", "client", "servers", "loader"},
    "cli": LOADER | {"loader", "ingest", "tools", "servers", "client", "ray"},
    "__main__": {"cli"},
}
# telemetry: a writer for TensorBoard
MAY_IMPORT_TORCH = {"telemetry", "device", "loader", "servers", "tools", "ray", "cli", "__main__"}
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def imported(node: ast.AST, package: str) -> list[str]:
    """Return the modules that a statement imports; `from mpload import x` is resolved to the module that defines x."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = resolve_name("." * node.level + (node.module or ""), package)
    if module != "mpload":
        return [module]
    return [mpload._MODULES.get(alias.name, f"mpload.{alias.name}") for alias in node.names]


def faults(source: str, module: str) -> list[str]:
    """Return the imports in the `source` of `mpload.<module>` that its package does not allow."""
    package = module.partition(".")[0]
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node, f"mpload.{module}".rpartition(".")[0]):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top == "torch" and package not in MAY_IMPORT_TORCH:
                found.append(f"mpload.{module} imports torch")
            if top == "mpload" and target not in {"", "__version__", package} | MAY_IMPORT[package]:
                found.append(f"mpload.{module} imports {name}")
    return found


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"  # it imports from all layers, lazily
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_layers_below_it(module: str) -> None:
    assert not faults(MODULES[module].read_text(), module)


def imported_modules(source: str, module: str) -> set[str]:
    """Return the modules of mpload that `mpload.<module>` imports anywhere, imports only for type checkers included."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for name in imported(node, f"mpload.{module}".rpartition(".")[0]):
            members = [f"{name}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            found |= {target.removeprefix("mpload.") for target in (name, *members)} & set(MODULES)
    return found - {module}


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that lie on a circle of imports, or on a path from one circle to another."""
    left, num_before = dict(imports), 0
    while len(left) != num_before:
        num_before, targets = len(left), set[str]().union(*left.values())
        left = {module: below for module, below in left.items() if below & set(left) and module in targets}
    return set(left)


IMPORTS = {module: imported_modules(path.read_text(), module) for module, path in MODULES.items()}


def test_no_module_imports_one_that_imports_it() -> None:
    assert not in_circles(IMPORTS)


@pytest.mark.parametrize("line", ["from mpload.transport.pool import WorkerPool", "from ..transport import pool"])
def test_an_import_for_type_checkers_alone_can_close_a_circle(line: str) -> None:
    source = f"if TYPE_CHECKING:\n    {line}\n\n{MODULES['transport.stream'].read_text()}"
    assert {"transport.pool", "transport.stream"} == in_circles(
        {**IMPORTS, "transport.stream": imported_modules(source, "transport.stream")}
    )


def test_the_table_names_every_package_and_agrees_with_the_contracts() -> None:
    rows = CONTRACTS[0]["layers"]
    assert {module.partition(".")[0] for module in MODULES} == set(MAY_IMPORT) == set(" | ".join(rows).split(" | "))
    heights = {name: -height for height, row in enumerate(rows) for name in row.split(" | ")}
    assert all(heights[below] < heights[name] for name, allowed in MAY_IMPORT.items() for below in allowed)
    without_torch = {name.removeprefix("mpload.") for name in CONTRACTS[1]["source_modules"]}
    assert without_torch == set(MAY_IMPORT) - MAY_IMPORT_TORCH


@pytest.mark.parametrize(
    "package", sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
)
def test_the_docstring_of_a_package_lists_each_of_its_modules(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = [line.split()[0] for part in text.split("```")[1::2] for line in part.strip().splitlines()]
    modules = {path.stem for path in (*package.glob("*.py"), *package.glob("*.c"), *package.glob("*/"))}
    assert sorted(named) == sorted(modules - {"__init__", "__pycache__"})


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("plan.order", "import torch"),
        ("plan.order", "from torch.utils import data"),
        ("plan.order", "import mpload.index.scan"),
        ("plan.order", "from mpload.loader.dataset import MPDataset"),
        ("plan.order", "from mpload import loader"),
        ("plan.order", "from mpload import MPDataset"),
        ("plan.order", "from ..loader import dataset"),
        ("plan.order", "from ..loader.dataset import MPDataset"),
        ("plan.order", "import mpload.sketch"),
        ("index.scan", "from mpload.samples.pipeline import Pipeline"),
        ("index.scan", "from ..samples import pipeline"),
        ("images.decoders", "from mpload.plan.sample_rng import SampleRng"),
        ("loader.dataset", "from mpload.ingest.build import build_index"),
        ("device.carrier", "from mpload.transport.pool import WorkerPool"),
    ],
)
def test_an_import_that_breaks_the_layers_is_found(module: str, line: str) -> None:
    source = MODULES[module].read_text()
    assert not faults(source, module)
    assert len(faults(f"{source}\n\ndef late() -> None:\n    {line}\n", module)) == 1


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.processes
def test_importing_mpload_loads_nothing_heavy() -> None:
    assert loaded_by("import mpload").isdisjoint({"torch", "pyarrow", "numpy", "cv2"})


@pytest.mark.slow
@pytest.mark.processes
def test_a_loader_imports_nothing_that_its_first_batch_does_not_need() -> None:
    loaded = loaded_by("from mpload import MPDataset, MPLoader, RandomResizedCrop")
    assert "torch" in loaded
    assert loaded.isdisjoint(
        {"albumentations", "cv2", "jinja2", "matplotlib", "obstore", "pandas", "pyarrow", "rich", "typer"}
    )


@pytest.mark.processes
@pytest.mark.parametrize("module", ["cli.main", "samples.pipeline", "index.opening", "plan.topology"])
def test_modules_that_need_no_torch_do_not_import_it(module: str) -> None:
    assert "torch" not in loaded_by(f"import mpload.{module}")


@pytest.mark.parametrize("folder", ["mpload", "tests", "benchmarks", "examples", "docs"])
def test_no_source_file_has_more_than_400_lines(folder: str) -> None:
    files = [path for path in (PACKAGE.parent / folder).rglob("*") if path.suffix in {".py", ".pyi", ".c", ".h"}]
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert [path for path, length in lengths.items() if length > 400] == []


def test_no_test_module_imports_another() -> None:
    others = re.compile(r"^ *(?:from|import) tests\.(?:\w+\.)*test_\w+", re.MULTILINE)
    found = {str(path): others.findall(path.read_text()) for path in Path(__file__).parent.rglob("*.py")}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.processes
@pytest.mark.parametrize("module", ["samples.pipeline", "index.index", "index.opening", "plan.order", "plan.plan"])
def test_modules_that_read_samples_do_not_import_pyarrow(module: str) -> None:
    assert "pyarrow" not in loaded_by(f"import mpload.{module}")
