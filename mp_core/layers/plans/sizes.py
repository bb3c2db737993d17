"""Numbers of rows that differ from run to run: which lengths of a recording are such numbers."""

from itertools import combinations

from mp_core.arrays.recorded import UnseenError

__all__ = ["Sizes"]


class Sizes:
    """The sizes of two examples. A length that is another in each of their recordings follows one of the sizes.

    Parameters
    ----------
    first, second : tuple of int
        The sizes of the examples, none of them the same in both.

    Examples
    --------
    >>> sizes = Sizes((18, 3), (26, 4))
    >>> [sizes.of("x", *lengths) for lengths in [(3, 4), (18, 26), (3, 3), (18, 18)]]
    [1, 0, -1, -1]
    """

    def __init__(self, first: tuple[int, ...], second: tuple[int, ...]) -> None:
        if len(first) != len(second) or any(map(int.__eq__, first, second)):
            raise ValueError(f"two examples must have as many sizes, all different; received {first} and {second}")
        self.first, self.second = first, second

    def __bool__(self) -> bool:
        return bool(self.first)

    def of(self, name: str, first: int, second: int) -> int:
        """Return which size a length follows, or -1 for one that is the same in both recordings.

        If two sizes are equal in both examples, it is the first of them: :meth:`check` lets no run tell them apart.
        """
        if first == second:
            return -1
        pairs = list(zip(self.first, self.second, strict=True))
        if (first, second) not in pairs:
            raise UnseenError(
                f"{name} has {first} rows for sizes {self.first} and {second} for {self.second}: a plan for all sizes "
                "cannot tell how many it has for others"
            )
        return pairs.index((first, second))

    def of_shapes(self, first: tuple[int, ...], second: tuple[int, ...], longer: bool = False) -> tuple[int, int]:
        """Return which size the first axis of an array follows, or -1, and by how many it is longer than this size.

        Only with `longer` may it be longer, as offsets are, which say where each of so many sequences begins and the
        last one ends.
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
            "cannot tell which it has for others"
        )

    def check_alike(self, first: list[str], second: list[str]) -> None:
        """Raise unless the names of the operations in both recordings are the same."""
        if first != second:
            raise UnseenError(
                f"the operations for sizes {self.first} differ from those for {self.second}: a plan for all sizes "
                f"needs the same ones; received {first} and {second}"
            )

    def check_step(self, name: str, size: int, buffers: list[int]) -> None:
        """Raise if an operation that follows no size reads or writes an array that follows one."""
        if size < 0 and any(each >= 0 for each in buffers):
            raise UnseenError(f"{name} cannot have another number of rows in each run")

    def check(self, rows: tuple[int, ...]) -> None:
        """Raise unless these may be the sizes of a run."""
        if len(rows) != len(self.first) or min(rows) < 1:
            raise ValueError(f"`rows` must be {len(self.first)} positive numbers; received {rows}")
        for i, j in combinations(range(len(rows)), 2):
            if (self.first[i], self.second[i]) == (self.first[j], self.second[j]) and rows[i] != rows[j]:
                raise ValueError(
                    f"`rows` must have equal numbers at {i} and {j}, as in the examples {self.first} and "
                    f"{self.second}; received {rows}"
                )
