"""crosscheck's time in tests: it passes by looks at the clock, whatever else the machine does."""

SECONDS_A_LOOK = 1e-3


class Looks:
    """Each look sets it forward a little, and a test as far as it likes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += SECONDS_A_LOOK
        return self.seconds
