"""Training of base classifiers under noise."""

from sigmax.train.augmentation import train_under_noise

__all__ = ["train_under_noise"]
