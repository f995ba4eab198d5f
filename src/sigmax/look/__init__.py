"""What the report and the service's page share: style, drawing and the policy that lets in nothing from elsewhere."""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

_FOLDER = Path(__file__).parent


def whole_style(own: str) -> str:
    """The style of a page: what all share, then its own."""
    return (_FOLDER / "base.css").read_text() + own


def whole_script(own: str) -> str:
    """The script of a page: what all share, then its own."""
    return (_FOLDER / "base.js").read_text() + own


def script_digest(script: str) -> str:
    """As a content security policy names the one script that may run."""
    return b64encode(sha256(script.encode()).digest()).decode()
