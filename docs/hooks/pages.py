"""What mkdocs calls for each page, so that the site loads nothing from anywhere and hides nothing."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $…$ and $$…$$.
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers show by themselves; the source of a value, with its comments, is open."""
    content = _FORMULA.sub(_mathml, content)
    return content.replace('<details class="mkdocstrings-source"', '<details open class="mkdocstrings-source"')


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found["latex"]), display="block" if found["tag"] == "div" else "inline")
