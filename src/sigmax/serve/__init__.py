"""Answering questions about single inputs."""

from sigmax.serve.answer import Answer, Answerer

__all__ = ["Answer", "Answerer"]
