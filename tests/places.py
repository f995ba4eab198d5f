"""Where tests find what is not in the repository."""

from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared"  # real data, beside the repository
