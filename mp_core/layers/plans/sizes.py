"""Variable sizes of plans: which lengths in a recording depend on the numbers of rows, which differ between runs."""

from itertools import combinations

from mp_core.arrays.recorded import UnseenError

__all__ = ["Sizes"]


class Sizes:
    """The sizes of two examples, each different. A length that differs between their recordings depends on one of them.

    Examples
    --------
    >>> sizes = Sizes((18, 3), (26, 4))
    >>> [sizes.of("x", *lengths) for lengths in [(3, 4), (18, 26), (3, 3), (18, 18)]]
    [1, 0, -1, -1]
    """

    def __init__(self, first: tuple[int, ...], second: tuple[int, ...]) -> None:
        if len(first) != len(second) or any(map(int.__eq__, first, second)):
            raise ValueError(
                f"two examples must have equally many sizes, and each size must differ; received {first} and {second}"
            )
        self.first, self.second = first, second

    def __bool__(self) -> bool:
        return bool(self.first)

    def of(self, name: str, first: int, second: int) -> int:
        """Return the index of the size that a length equals in both recordings; -1 if the length does not change.

        If two sizes are equal in both examples, this is the first one; :meth:`check` makes them equal in each run.
        """
        if first == second:
            return -1
        pairs = list(zip(self.first, self.second, strict=True))
        if (first, second) not in pairs:
            raise UnseenError(
                f"{name} has {first} rows for sizes {self.first} and {second} for {self.second}: a plan for all sizes "
                "cannot compute its number of rows for other sizes"
            )
        return pairs.index((first, second))

    def of_shapes(self, first: tuple[int, ...], second: tuple[int, ...], longer: bool = False) -> tuple[int, int]:
        """Return the index of the size that the first axis depends on, or -1, and how much longer it is than the size.

        It may be longer only if `longer` is true: the offsets of n sequences have n + 1 elements.
        """
        if first == second:
            return -1, 0
        if len(first) == len(second) and first[1:] == second[1:]:
            pairs = [(a, b) for a, b in zip(self.first, self.second, strict=True)]
            for more in (0, 1) if longer else (0,):
                if (first[0] - more, second[0] - more) in pairs:
                    return pairs.index((first[0] - more, second[0] - more)), more
        raise UnseenError(
            f"an array has shape {first} for sizes {self.first} and {second} for {self.second}: a plan for all sizes "
            "cannot compute its shape for other sizes"
        )

    def check_alike(self, first: list[str], second: list[str]) -> None:
        """Raise UnseenError unless both recordings have the same operations."""
        if first != second:
            raise UnseenError(
                f"the operations for sizes {self.first} differ from those for {self.second}: a plan for all sizes "
                f"needs the same ones; received {first} and {second}"
            )

    def check_step(self, name: str, size: int, buffers: list[int]) -> None:
        """Raise UnseenError if an operation depends on no size, but one of its arrays does."""
        if size < 0 and any(each >= 0 for each in buffers):
            raise UnseenError(
                f"{name} cannot have another number of rows in each run, but one of its arrays depends on the sizes"
            )

    def check(self, rows: tuple[int, ...]) -> None:
        """Raise ValueError unless `rows` are valid sizes of a run."""
        if len(rows) != len(self.first) or min(rows) < 1:
            raise ValueError(f"`rows` must be {len(self.first)} positive numbers; received {rows}")
        for i, j in combinations(range(len(rows)), 2):
            if (self.first[i], self.second[i]) == (self.first[j], self.second[j]) and rows[i] != rows[j]:
                raise ValueError(
                    f"`rows` must have equal numbers at {i} and {j}, as in the examples {self.first} and "
                    f"{self.second}; received {rows}"
                )
