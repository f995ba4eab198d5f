"""The memory of certified balls (Algorithm 3)."""

from sigmax.memory.ledger import Entry, Ledger
from sigmax.memory.store import CertificateMemory

__all__ = ["CertificateMemory", "Entry", "Ledger"]
