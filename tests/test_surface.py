"""All that users type, catch and receive is importable from mpload, documented and typed; nothing else is public."""

import ast
import enum
import inspect
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import mpload

GOLDEN = Path(__file__).parent / "golden" / "surface.txt"
NAMES = sorted(mpload._MODULES)
TYPED = """
import mpload
import mpload.nowhere  # error: import-not-found
from mpload import MPDataset, MPLoader, nonsense  # error: attr-defined


class Squares:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> int:
        return number * number


mpload.nonsense  # error: attr-defined
MPDataset("train.txt", tail="padd")  # error: arg-type
MPDataset("train.txt", on_error="skipp")  # error: arg-type
MPDataset("train.txt", page_cache="dropp")  # error: arg-type
pairs: MPDataset[tuple[bytes, int]] = MPDataset("train.txt", batch_size=8, tail="pad")
loader = MPLoader(pairs, num_workers="auto")
for images, labels in loader:
    images.nonsense()  # error: attr-defined
    labels.bit_count()
for images, labels in mpload.DevicePrefetcher[tuple[bytes, int]](loader):
    images.nonsense()  # error: attr-defined
for images, labels in MPLoader(MPDataset("train.txt", batch_size=8)):  # without a type, batches are Any
    images.nonsense()
loader.nonsense()  # error: attr-defined
MPLoader(pairs, num_workers="many")  # error: call-overload
MPLoader(pairs, batch_size=8)  # error: call-overload
MPLoader(pairs, pin_memory=True)  # error: call-overload
MPLoader(pairs, shuffle=True)  # error: call-overload
MPLoader(Squares(), batch_sizes=8)  # error: call-overload
MPLoader(Squares(), batch_size=8, tail="padd")  # error: call-overload
squares: MPLoader[int] = MPLoader(Squares(), batch_size=8, shuffle=True, tail=mpload.Tail.DROP)
"""


# To check against torch, NumPy and pyarrow takes a minute; that is done elsewhere, for the whole package.
CONFIG = """
[mypy]
strict = True
mypy_path = {path}
follow_imports = silent
[mypy-cv2.*,numpy.*,pyarrow.*,rich.*,torch.*]
follow_imports = skip
follow_imports_for_stubs = True
[mypy-torch.utils.data.*]
follow_imports = silent
"""


def public(name: str) -> Any:
    return getattr(mpload, name)


CLASSES = [name for name in NAMES if isinstance(public(name), type)]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(public(name))]


def own_bases(kind: type) -> list[type]:
    """Return those of a class and its bases that mpload defines."""
    return [base for base in kind.__mro__ if base.__module__.startswith("mpload.")]


def attributes(kind: type) -> set[str]:
    """Return the public names that the methods of a class assign to on `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    }


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {
        name: value.__func__ if isinstance(value, classmethod | staticmethod) else value
        for base in reversed(own_bases(kind))
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod))
    }
    return dict(sorted(found.items()))


def values(kind: type) -> set[str]:
    """Return the public names of a class or its instances that are not methods."""
    if issubclass(kind, enum.Enum):
        return {member.name for member in kind}
    found = {name for base in own_bases(kind) for name in {*vars(base), *vars(base).get("__annotations__", ())}}
    found |= {name for base in own_bases(kind) for name in attributes(base)}
    return {name for name in found if not name.startswith("_")} - methods(kind).keys()


def first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def surface() -> Iterator[str]:
    """Yield a line for each public name, and one for each public member of a class."""
    for name in NAMES:
        yield f"{name}: {first_line(public(name))}"
        if name in CLASSES:
            yield from (f"    {value}" for value in sorted(values(public(name))))
            yield from (f"    {method}()" for method in methods(public(name)))


def test_the_public_surface_is_unchanged() -> None:
    assert "\n".join(surface()) + "\n" == GOLDEN.read_text(encoding="utf-8"), (
        "the public surface changed. If that is intended, record it: python -m tests.test_surface"
    )


def test_exactly_the_listed_names_are_public() -> None:
    assert vars(mpload)["__all__"] == NAMES
    assert set(NAMES) <= set(dir(mpload))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(mpload, "nothing")  # noqa: B009  type checkers refuse mpload.nothing
    with pytest.raises(ImportError):
        exec("from mpload import nothing")


def test_every_error_is_public_and_says_when_it_is_raised_and_what_to_do() -> None:
    errors = sys.modules["mpload.errors"]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception | Warning)]
    assert {kind.__name__ for kind in kinds} == set(errors.__all__) <= set(NAMES)
    for kind in kinds:
        assert (kind.__doc__ or "").strip().count("\n") >= 2, kind
        if kind is not mpload.MploadWarning:
            assert issubclass(kind, mpload.MploadError)
            assert re.search(rf"[├└]── {kind.__name__} |^{kind.__name__}$", errors.__doc__ or "", re.MULTILINE), kind


def is_made_by_users(kind: type) -> bool:
    """Return whether users construct a class and need documentation of its constructor beside that of its fields."""
    is_protocol = getattr(kind, "_is_protocol", False)
    return not (issubclass(kind, enum.Enum) or is_protocol or is_dataclass(kind) or "made by" in first_line(kind))


def callables() -> dict[str, Callable[..., Any]]:
    """Return all public functions, constructors and methods, by their public names."""
    found = {name: public(name) for name in FUNCTIONS}
    for name in CLASSES:
        kind = public(name)
        if isinstance(constructor := vars(kind).get("__init__"), FunctionType) and is_made_by_users(kind):
            found[name] = constructor
        found |= {f"{name}.{method}": function for method, function in methods(kind).items()}
    return found


def annotated() -> Iterator[tuple[str, object]]:
    """Yield each place in the public surface that names a type, with that type."""
    for name, function in callables().items():
        for each in [function, *typing.get_overloads(function)]:
            for part, hint in typing.get_type_hints(each).items():
                yield f"{name}({part})", hint
    for name in CLASSES:
        kind = public(name)
        for member in values(kind):
            found = inspect.getattr_static(kind, member, None)
            if isinstance(found, property) and found.fget is not None:
                yield f"{name}.{member}", typing.get_type_hints(found.fget)["return"]
        if is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            yield from ((f"{name}.{field.name}", hints[field.name]) for field in fields(kind))


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in (typing.get_origin(hint), *typing.get_args(hint)):
        if isinstance(part, list):
            yield from (kind for one in part for kind in classes_in(one))
        elif part is not None and not isinstance(part, str | int | bool | enum.Enum):
            yield from classes_in(part)


def test_every_mpload_type_in_a_public_signature_is_public() -> None:
    hidden = {
        f"{place}: {kind.__module__}.{kind.__qualname__}"
        for place, hint in annotated()
        for kind in classes_in(hint)
        if kind.__module__.startswith("mpload.") and mpload._MODULES.get(kind.__name__) != kind.__module__
    }
    assert not hidden


def raises(function: Callable[..., Any]) -> bool:
    """Return whether the body of a function raises an exception itself, other than by a bare `raise`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def lists(doc: str, name: str) -> bool:
    """Return whether a docstring has an entry for a name, as in `Args:` or `Attributes:`."""
    return re.search(rf"^ +(\w+, )*{name}(, \w+)*:", doc, re.MULTILINE) is not None


@pytest.mark.parametrize("name", callables())
def test_every_parameter_and_error_of_a_public_callable_is_documented(name: str) -> None:
    function = callables()[name]
    doc = inspect.getdoc(function) or ""
    if name in CLASSES:
        doc = f"{inspect.getdoc(public(name))}\n{doc}"
    if re.search(r"; see `\w+\.\w+`", doc):
        return
    parameters = inspect.signature(function).parameters.values()
    documented = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}  # which are refused
    for parameter in documented - {"self", "cls"}:
        # a method with one or two parameters may name them in its sentence
        assert lists(doc, parameter) or ("." in name and f"`{parameter}`" in doc), parameter
    assert not raises(function) or re.search(r"\braises? `|^Raises:", doc, re.IGNORECASE | re.MULTILINE)


def default_values(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the default values that the documentation shows, of a function or of the members of a class."""
    if isinstance(node, ast.FunctionDef):
        yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.FunctionDef) and (child.name == "__init__" or not child.name.startswith("_")):
                yield from default_values(child)
            elif isinstance(child, ast.AnnAssign) and child.value is not None:
                yield child.value


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS])
def test_default_values_of_the_public_surface_name_only_what_is_public(name: str) -> None:
    sources = [public(name), *typing.get_overloads(public(name))]
    nodes = [ast.parse(textwrap.dedent(inspect.getsource(source))).body[0] for source in sources]
    named = {
        part.id
        for node in nodes
        for default in default_values(node)
        for part in ast.walk(default)
        if isinstance(part, ast.Name)
    }
    assert named <= {*NAMES, "dict", "field", "torch"}


@pytest.mark.parametrize("name", [name for name in CLASSES if is_dataclass(public(name))])
def test_every_field_of_a_public_dataclass_is_documented(name: str) -> None:
    kind = public(name)
    doc = "\n".join(inspect.getdoc(base) or "" for base in own_bases(kind))
    below = {
        before.target.id
        for base in own_bases(kind)
        for before, after in pairwise(ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body)  # type: ignore[attr-defined]
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr)
    }
    assert {field.name for field in fields(kind) if not lists(doc, field.name)} <= below
    check = vars(kind).get("__post_init__")
    assert check is None or not raises(check) or "Raises:" in doc


@pytest.mark.slow
@pytest.mark.processes
def test_type_checkers_refuse_unknown_names_and_misspelled_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(TYPED)
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG.format(path=Path(mpload.__file__).parents[1]))
    command = [sys.executable, "-m", "mypy", f"--config-file={config}", "--no-pretty"]
    ran = subprocess.run(
        [*command, f"--cache-dir={tmp_path}", snippet], capture_output=True, text=True, check=False, timeout=110
    )
    found = dict.fromkeys(re.findall(r"^.*snippet\.py:(\d+): error: .*\[([\w-]+)\]$", ran.stdout, re.MULTILINE))
    expected = [
        (str(number), line.partition("# error: ")[2])
        for number, line in enumerate(TYPED.split("\n"), 1)
        if "# error: " in line
    ]
    assert list(found) == expected, ran.stdout + ran.stderr


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(surface()) + "\n", encoding="utf-8")
