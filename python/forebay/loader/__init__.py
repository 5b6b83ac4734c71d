"""The data loader's parts that know no framework.

`forebay.torch.DataLoader` is the loader itself, for PyTorch. Here are the protocol of datasets (`Located`, `Extent`),
the sources of bytes (`Source`), the order of a rank's samples (`Order`), datasets of common formats, and the errors.
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
