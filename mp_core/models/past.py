"""What attention needs of the earlier tokens of sequences: the cache of keys and values, and the pages in it."""

from typing import NamedTuple

from mp_core.arrays import Array
from mp_core.ops.paged import Pages, paged_attention, store_rows

__all__ = ["Past"]


class Past(NamedTuple):
    """The keys and values of the earlier tokens of sequences."""

    pages: Pages
    keys: list[Array]  # For each block (heads * rows, size).
    values: list[Array]
    length: int  # The rows of a page.

    def attended(
        self,
        block: int,
        query: Array,
        key: Array,
        value: Array,
        offsets: Array | None,
        scale: float | None,
        reach: int | None,
        softcap: float | None,
    ) -> Array:
        """Store new keys and values, and return the attention of the new queries to all of them."""
        keys = store_rows(key, self.pages, self.keys[block])
        values = store_rows(value, self.pages, self.values[block])
        assert offsets is not None, "sequences with a past are ragged"
        how = (self.length, key.shape[-2], scale, reach, softcap)
        return paged_attention(query, keys, values, offsets, self.pages, *how)
