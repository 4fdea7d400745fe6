"""How often and after which pause something is tried again."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses double from the first to the longest, each give or take a fifth, so that clients don't march in step."""

    attempts: int = 40
    """With these pauses half a minute: longer than a cluster takes to notice a silent node and elect another."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0

    def pause_s(self, failures: int, random: Random) -> float:
        """After so many failures in a row, at least one."""
        # The exponent is bounded: 2**1000 is no float.
        pause: float = min(self.longest_pause_s, self.first_pause_s * 2 ** min(failures - 1, 30))
        return pause * random.uniform(0.8, 1.2)
