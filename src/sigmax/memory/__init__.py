"""The memory of certified balls (Algorithm 3)."""

from sigmax.memory.explain import Explanation, Influence
from sigmax.memory.frozen import FrozenMemory
from sigmax.memory.ledger import Entry, Ledger
from sigmax.memory.memory import Memory
from sigmax.memory.nearest import Nearby
from sigmax.memory.orders import permute
from sigmax.memory.store import CertificateMemory
from sigmax.memory.transfer import copy_memory

__all__ = [
    "CertificateMemory",
    "Entry",
    "Explanation",
    "FrozenMemory",
    "Influence",
    "Ledger",
    "Memory",
    "Nearby",
    "copy_memory",
    "permute",
]
