"""What mkdocs calls for each page, so that the site loads nothing from anywhere and hides nothing."""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

# What pymdownx.arithmatex makes of $…$ and $$…$$.
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
# Code in running text, and the names of options in it.
_CODE = re.compile(r"<code>[^<]*</code>")
_OPTION = re.compile(r"(?<=[\s>])--?\w[\w-]*")


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers show by themselves; the source of a value, with its comments, is open.

    The name of an option is never parted after a hyphen.
    """
    content = _FORMULA.sub(_mathml, content)
    content = _CODE.sub(lambda code: _OPTION.sub(r'<span class="option">\g<0></span>', code[0]), content)
    return content.replace('<details class="mkdocstrings-source"', '<details open class="mkdocstrings-source"')


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Add the interactive report of each experiment, made from the records that are kept beside its page."""
    sys.path.insert(0, str(Path(config["config_file_path"]).parent / "benchmarks"))
    from results import EXPERIMENTS, compose

    for name in EXPERIMENTS:
        files.append(File.generated(config, f"results/{name}/interactive.html", content=compose(name).page))
    return files


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found["latex"]), display="block" if found["tag"] == "div" else "inline")
