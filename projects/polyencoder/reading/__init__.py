"""Records of the data files that users have, one at a time, with errors that name the file and the line.

Every reader takes a path or an open `DataFile`, and `bad`: what to do with a record that cannot be used.
"""

from __future__ import annotations

from polyencoder.reading.bad import BadExamples, OnBad, raise_it
from polyencoder.reading.json_array import json_array
from polyencoder.reading.lines import lines
from polyencoder.reading.records import FORMATS, format_of, records
from polyencoder.reading.sources import DamagedFile, DataFile, Source, expand, open_bytes

__all__ = [
    "FORMATS",
    "BadExamples",
    "DamagedFile",
    "DataFile",
    "OnBad",
    "Source",
    "expand",
    "format_of",
    "json_array",
    "lines",
    "open_bytes",
    "raise_it",
    "records",
]
