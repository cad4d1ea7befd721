"""How everything that mpload draws looks: one palette, one page, one style of figure.

```
figures       figures of matplotlib, which is optional: titles that say what was found, lines named where they end
pages         HTML pages, from the templates beside it; complete in themselves, light and dark
*.html.j2     the templates
```
"""
