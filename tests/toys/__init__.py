"""A right numpy decoder with every capability of the protocol, and faulted copies of it."""

from tests.toys.config import ToyConfig
from tests.toys.subject import State, Toy

FLAVORS = {
    "gqa": Toy(),
    "windowed": Toy(ToyConfig(windows=(5, None, 8))),
    "ring": Toy(ToyConfig(windows=(5, 5))),
    "learned": Toy(ToyConfig(learned=True)),
    "mla": Toy(ToyConfig(kind="mla")),
    "cross": Toy(ToyConfig(cross=True)),
    "paged": Toy(layout="paged"),
    "quantized": Toy(layout="quantized"),
}

__all__ = ["FLAVORS", "State", "Toy", "ToyConfig"]
