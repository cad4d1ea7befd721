"""Rewrite links that lead out of docs/, so that they work on the site as well as in the repository."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PICTURES = Path(__file__).parents[1] / "benchmarks/records"
OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:benchmarks|examples|mpload|tests)/[^)]+|[A-Z]+(?:\.md)?)\)")


def on_files(files: Files, config: Any) -> Files:
    """Copy the pictures of the benchmarks into the site."""
    for path in PICTURES.glob("*.png"):
        files.append(File.generated(config, f"records/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to pictures at the copies, and links to other files at the repository."""

    def moved(link: re.Match[str]) -> str:
        name = link[1].removeprefix("benchmarks/")
        if files.get_file_from_path(name):
            return f"]({'../' * page.file.src_uri.count('/')}{name})"
        return f"]({config.repo_url}/blob/main/{link[1]})"

    return OUTSIDE.sub(moved, markdown)
