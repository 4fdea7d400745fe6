"""Defines the number of retries and the pauses between them."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Retry:
    """Determines the pauses between retries: each pause is twice as long as the previous pause, up to a maximum.

    Each pause is randomly up to a fifth shorter or longer, so that clients don't retry at the same time.
    """

    attempts: int = 40
    """The number of attempts.

    With these pauses they take half a minute, longer than a cluster takes to replace a silent leader.
    """
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0

    def pause_s(self, failures: int, random: Random) -> float:
        """Returns the pause in seconds after `failures` (at least 1) failures in a row."""
        # The exponent is bounded: 2**1000 overflows a float.
        pause: float = min(self.longest_pause_s, self.first_pause_s * 2 ** min(failures - 1, 30))
        return pause * random.uniform(0.8, 1.2)
