"""HTML pages from the templates beside this file: one file each, nothing fetched, no script, light and dark.

Text is escaped by the template engine wherever a template shows it.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["render_page"]


def render_page(template: str, **values: Any) -> str:
    """Return the page that a template makes of `values`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
