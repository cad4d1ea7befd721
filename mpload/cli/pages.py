"""Self-contained HTML pages from the templates in this folder: without scripts, in light and dark mode.

`sheet.html.j2` extends `page.html.j2`. The template engine escapes all text.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

__all__ = ["render_page"]


def render_page(template: str, **values: Any) -> str:
    """Render a template with `values`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
