"""Readers of users' data files: one record at a time, with errors that name file and line.

Every reader takes a path or an open `DataFile`, and `bad`: what to do with a record that cannot be used.
"""

from __future__ import annotations

from polyencoder.data.readers.bad import BadExamples, OnBad, log_once, log_system_messages, raise_it
from polyencoder.data.readers.delimited import parse_delimiter
from polyencoder.data.readers.json_array import iter_json_array
from polyencoder.data.readers.lines import iter_lines
from polyencoder.data.readers.records import FORMATS, HEAD, detect_format, is_record, iter_records
from polyencoder.data.readers.sources import DamagedFile, DataFile, Source, expand, open_bytes

__all__ = [
    "FORMATS",
    "HEAD",
    "BadExamples",
    "DamagedFile",
    "DataFile",
    "OnBad",
    "Source",
    "detect_format",
    "expand",
    "is_record",
    "iter_json_array",
    "iter_lines",
    "iter_records",
    "log_once",
    "log_system_messages",
    "open_bytes",
    "parse_delimiter",
    "raise_it",
]
