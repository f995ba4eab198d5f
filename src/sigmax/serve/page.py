"""The page of the service: one HTML file that asks nothing of any other server."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sigmax.look import script_digest, whole_script, whole_style

_ASSETS = Path(__file__).parent / "page_assets"


def render_page(*, needs_token: bool) -> tuple[bytes, dict[str, str]]:
    """The page, and the headers to send it with."""
    script = whole_script((_ASSETS / "page.js").read_text())
    style = whole_style((_ASSETS / "page.css").read_text())
    environment = Environment(loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    page = environment.get_template("page.html").render(script=script, style=style, needs_token=needs_token)
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{script_digest(script)}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return page.encode(), headers
