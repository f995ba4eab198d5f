"""A sigma search of one's own: the better of two sigmas for each input, by a pilot."""

from typing import final

import torch

from sigmax import Choice, SearchTask, SigmaSearch, SmoothedClassifier
from sigmax.search.base import projected_radius


@final
class BetterOfTwo(SigmaSearch):
    """Tries sigma0 and twice as much."""

    initial = 0.25
    fixes_class = True

    def find(self, task: SearchTask) -> Choice:
        """Take the sigma whose projected radius is larger."""
        low = torch.full((len(task.x),), self.initial, dtype=task.x.dtype, device=task.x.device)
        gained = projected_radius(task, 2 * low, samples=500) > projected_radius(task, low, samples=500)
        return Choice(sigma=torch.where(gained.to(low.device), 2 * low, low))

    def cost(self) -> int:
        """Two pilots of 500 samples."""
        return 1_000


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    smoothed = SmoothedClassifier(model, num_classes=10, sigma=BetterOfTwo())
    for certificate in smoothed.certify(torch.rand(3, 1, 8, 8), n=1_000):
        print(certificate)
