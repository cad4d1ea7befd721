"""The common style of all that mpload draws: one palette, one layout of pages, one style of figures.

```
figures  matplotlib figures (matplotlib is optional): titles state the finding, and labels stand at the ends of lines
pages    self-contained HTML pages from the templates in this folder, in light and dark mode
```

The templates are `doctor.html.j2` and `sheet.html.j2`, which both extend `page.html.j2`.
"""
