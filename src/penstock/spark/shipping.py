"""Pickles the source, readers and writers so that a task reports a module that is missing on its executor.

Spark pickles an object with the name of its class. On an executor without Penstock, Spark's own unpickling then raises
a ModuleNotFoundError, which names no remedy. So each of these objects is pickled together with a small function. The
function is pickled by value, so every executor can run it. It unpickles the object, or reports the missing module in
one sentence.

Spark copies the archives of `--py-files` to every executor. It adds them to the path of Python functions, but not to
the path of a data source's tasks. So if a task does not find Penstock, the small function adds these archives to the
path.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

Opener = Callable[[tuple[str, ...], bytes], Any]


class Shipped:
    """Serves as base class of the objects that Spark pickles and sends to executors."""

    needs: ClassVar[tuple[str, ...]] = ("numpy", "pyarrow")
    """Modules that the object's tasks import later."""

    def __reduce__(self) -> tuple[Opener, tuple[tuple[str, ...], bytes]]:
        return opener(), (self.needs, pickle.dumps((type(self), self.state())))

    def state(self) -> dict[str, Any]:
        return self.__dict__


def opener() -> Opener:
    """Returns the function that unpickles an object on an executor.

    Spark pickles an inner function by value, so this is an inner function with its own imports.
    """

    def open_here(needs: tuple[str, ...], packed: bytes) -> Any:
        import os
        import pickle
        import socket
        import sys
        from importlib.util import find_spec

        from pyspark import SparkFiles

        brought = SparkFiles._root_directory  # by Spark, to executors: --py-files and --files
        if find_spec("penstock") is None and brought is not None:
            sys.path += sorted(os.path.join(brought, name) for name in os.listdir(brought) if name.endswith(".zip"))
        try:
            for name in ("penstock", *needs):
                __import__(name)
            # Safe: our own driver pickled it, and Spark pickles everything that it sends.
            kind, state = pickle.loads(packed)  # noqa: S301
        except ModuleNotFoundError as missing:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the place in Spark's code does not help the user
            where = f"{sys.executable} on {socket.gethostname()}"
            raise ModuleNotFoundError(
                f'Tasks of format("penstock") need module {missing.name!r}, which {where} does not have: run executors '
                "in an environment that has it (`penstock pipeline pack` makes one), and set PYSPARK_PYTHON and "
                "PYSPARK_DRIVER_PYTHON to its Python, with a path that exists on the driver and on all executors.",
                name=missing.name,
            ) from None
        made = kind.__new__(kind)
        made.__dict__.update(state)
        return made

    return open_here
