"""Batches from a known future: what the data loader does without knowing any framework.

`forebay.torch.DataLoader` is the loader itself, for PyTorch. Here is what it is made of: what a dataset may say about itself (`Located`,
`Extent`), where bytes come from (`Source`), what a rank uses when (`Order`), and what goes wrong.
"""

from forebay.loader._errors import LoaderError, SampleError, StateError
from forebay.loader._report import EpochReport
from forebay.loader.arrow import ArrowRows
from forebay.loader.dataset import Extent, Located
from forebay.loader.mixture import Mixture, mixture
from forebay.loader.order import Order
from forebay.loader.parquet import ParquetRows
from forebay.loader.rows import FixedRows
from forebay.loader.shards import RecordShards, TarShards
from forebay.loader.source import DirectSource, Request, Source
from forebay.loader.tokens import TokenFile

__all__ = [
    "ArrowRows",
    "DirectSource",
    "EpochReport",
    "Extent",
    "FixedRows",
    "LoaderError",
    "Located",
    "Mixture",
    "Order",
    "ParquetRows",
    "RecordShards",
    "Request",
    "SampleError",
    "Source",
    "StateError",
    "TarShards",
    "TokenFile",
    "mixture",
]
