"""`python -m sigmax` is the command `sigmax`."""

from sigmax.cli import main

main()
