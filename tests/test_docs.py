"""The documentation is correct: code blocks run, links resolve, and generated pages match the code."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]

import mpload
from mpload.cli.photos import photo
from tests.support.fault_runs import certificate_in

ROOT = Path(mpload.__file__).parents[1]
REPOSITORY = "https://github.com/mpload/mpload"
PAGES = {str(page.relative_to(ROOT)): page for page in [*ROOT.glob("[CR]*.md"), *sorted(ROOT.glob("docs/**/*.md"))]}
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>skip|run)(?:: [^>]*)? -->\n\s*?)?"
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
CERTIFICATES = "our-certificates.pem"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced code block of a page, with the mark in the comment before it."""

    mark: str | None
    language: str
    code: str
    line: int
    """The number of lines before the code."""


def blocks_of(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        yield Block(
            mark=found["mark"],
            language=found["language"],
            code=dedent(found["code"]),
            line=text.count("\n", 0, found.start("code")),
        )


def test_blocks_are_found_with_their_marks() -> None:
    text = (
        '<!-- skip: no GPU -->\n```python\na\n```\n\n```\nb\n```\n\n!!! note\n\n    ```bash title="x"\n    c\n    ```\n'
    )
    assert list(blocks_of(text)) == [
        Block(mark="skip", language="python", code="a\n", line=2),
        Block(mark=None, language="bash", code="c\n", line=12),
    ]


# Code blocks run.


def is_like(shown: str, real: str) -> bool:
    """Return whether output matches what a page shows; numbers and blanks may differ, and `...` matches anything."""
    shown, real = (re.sub(r"\s+", " ", re.sub(r"\d[\d,.]*", "0", text)).strip() for text in (shown, real))
    return re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), real) is not None


@pytest.mark.parametrize(
    ("shown", "real", "like"),
    [
        ("1,900 images/s\n", "12.5  images/s", True),
        ("a ... z", "a b c z", True),
        ("2 images", "2 files", False),
        ("done", "done, with errors", False),
    ],
)
def test_output_is_compared_except_for_its_numbers(shown: str, real: str, like: bool) -> None:
    assert is_like(shown, real) is like


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `train` and `val` with twelve photographs each in `cat` and `dog`."""
    root = tmp_path_factory.mktemp("photographs")
    for name, number in product(("cat", "dog"), range(12)):
        pixels = photo({"cat": "desert", "dog": "forest"}[name], np.random.default_rng(number))
        for part, shown in (("train", pixels), ("val", np.ascontiguousarray(pixels[:, ::-1]))):
            path = root / part / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(simplejpeg.encode_jpeg(shown, quality=90))
    certificate_in(root).rename(root / CERTIFICATES)
    return root


@pytest.fixture
def folder(tmp_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that pages assume: photographs, indexes of `train` and `val`, certificates."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(photographs / CERTIFICATES, CERTIFICATES)
    for part in ("train", "val"):
        shutil.copytree(photographs / part, part)
        mpload.build_index(part, f"{part}.txt")
    return tmp_path


def run_shell(block: Block) -> str:
    """Run a block of commands and return their output. In a console block, lines with `$` are commands."""
    commands = (
        re.findall(r"^\$ (.*(?:\\\n.*)*)", block.code, re.MULTILINE) if block.language == "console" else [block.code]
    )
    script = "\n".join([f'mpload() {{ "{sys.executable}" -m mpload "$@"; }}', *commands])
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        check=False,
    )
    assert ran.returncode == 0, f"{block.code}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def marks_of(page: Path) -> Any:
    return pytest.mark.slow if "\n<!-- run -->\n" in page.read_text(encoding="utf-8") else ()  # commands take seconds


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("default")  # as in a script
@pytest.mark.parametrize("page", [pytest.param(name, marks=marks_of(page)) for name, page in PAGES.items()])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, folder: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(PAGES[page].read_text(encoding="utf-8")):
        if block.mark == "skip":
            continue
        if block.language == "output":
            assert is_like(block.code, printed), f"{page}:{block.line + 1}: the block before it prints\n{printed}"
        elif block.mark == "run":
            printed = run_shell(block)
        elif block.language == "python":
            code = compile("\n" * block.line + block.code, str(PAGES[page]), "exec")
            with redirect_stdout(io.StringIO()) as output:
                exec(code, namespace)
            printed = output.getvalue()


# Links resolve.


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def anchors_of(page: Path) -> set[str]:
    """Return a page's anchors: those of headings, if GitHub and the site make the same ones, and those of API names."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?)(?: *\{#([\w-]+)\})?$", text, re.MULTILINE)
    plain = [re.sub(r"[`*]", "", heading) for heading, _ in headings]
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}
    return {slug for slug in slugs if "--" not in slug} | set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))


def test_no_link_of_a_page_is_broken() -> None:
    broken = []
    for name, page in PAGES.items():
        for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
            inside = re.sub(rf"^{REPOSITORY}/(?:blob|raw|tree)/main/", f"{ROOT}/", link)
            if inside.startswith(("http:", "https:", "mailto:")):
                continue
            path, _, anchor = inside.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append(f"{name}: {link}")
    assert not broken, "\n".join(broken)


def test_the_readme_is_short_and_its_links_work_on_a_package_page() -> None:
    text = PAGES["README.md"].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert [link for link in LINK.findall(without_code(text)) if not link.startswith("https://")] == []


def rendered_width(rows: list[str]) -> int:
    """Return the columns that a table of Markdown takes as text: its longest cells, without the targets of links."""
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", row).strip("|").split(" | ") for row in rows]
    return sum(max(len(cell.strip()) for cell in column) + 3 for column in zip(*texts, strict=True))


def test_the_width_of_a_table_is_that_of_its_longest_cells() -> None:
    assert rendered_width(["| a | [one](https://far.away/from/here) |", "| `four` | b |"]) == len("four | one | ")


def test_the_tables_of_the_readme_fit_into_a_hundred_columns() -> None:
    tables = re.findall(r"(?:^\|.*\|\n)+", PAGES["README.md"].read_text(encoding="utf-8"), re.MULTILINE)
    widths = [rendered_width(table.replace("---:", "---").splitlines()) for table in tables]
    assert len(widths) == 2
    assert max(widths) <= 100


def test_files_and_packages_named_for_contributors_exist() -> None:
    named = set(re.findall(r"`(\w+/[\w./-]*)`", PAGES["CONTRIBUTING.md"].read_text(encoding="utf-8")))
    missing = {path for path in named if not (ROOT / path).exists() and not (ROOT / "mpload" / path).exists()}
    data = {"train/", "val/", "cat/", "dog/"}  # in the folder that pages run in
    assert {path for path in missing if "NAME" not in path} == data


# Generated pages match the code.


def test_every_public_name_is_on_the_api_page_exactly_once() -> None:
    listed = re.findall(r"^::: mpload\.(\w+)$", PAGES["docs/api.md"].read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(mpload.__all__)


def names_of(code: str) -> Iterator[str]:
    """Yield the names that code uses from mpload, and the modules of mpload that it imports from directly."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mpload":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mpload":
            yield from (alias.name if node.module == "mpload" else str(node.module) for alias in node.names)


def test_pages_use_only_public_names() -> None:
    private = {
        f"{name}: {used}"
        for name, page in PAGES.items()
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.language == "python"
        for used in names_of(block.code)
        if used not in mpload.__all__
    }
    assert private == set()
    assert set(names_of("import mpload\nfrom mpload.index import text\nmpload.order.Shuffle")) == {
        "order",
        "mpload.index",
    }


def errors(base: type[Exception] = mpload.MploadError) -> Iterator[type[Exception]]:
    for error in base.__subclasses__():
        if error.__module__ == "mpload.errors":
            yield error
            yield from errors(error)


@pytest.mark.parametrize("name", [error.__name__ for error in errors()])
def test_every_error_has_a_section_that_says_why_what_to_do_and_an_example(name: str) -> None:
    text = PAGES["docs/troubleshooting.md"].read_text(encoding="utf-8")
    section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/troubleshooting.md has no section {name}"
    assert "**Why**" in section[1]
    assert "**What to do**" in section[1]
    assert "```output" in section[1]


@pytest.mark.processes
def test_generated_pages_match_the_code() -> None:
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
