"""How everything that mpload draws looks: one palette, one page, one style of figure.

```
figures  figures of matplotlib, which is optional: titles that say what was found, lines named where they end
pages    HTML pages, from the templates beside it; complete in themselves, light and dark
```

The templates are `page.html.j2`, which the others extend, `doctor.html.j2` and `sheet.html.j2`.
"""
