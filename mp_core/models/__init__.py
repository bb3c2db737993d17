"""Models that load from the folders in which they are published."""

from mp_core.models.bert import BertEncoder

__all__ = ["BertEncoder"]
