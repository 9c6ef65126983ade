"""Know which bytes the samples of Megatron-LM's GPTDataset are, from its index files.

A sample is a number of consecutive tokens of documents in a shuffled order. The document index is that order, the
sample index has the document and the token where each sample begins, and the shuffle index has the order of samples
(megatron/core/datasets/gpt_dataset.py). The `.idx` file beside the tokens says where each document begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def document_parts(data_set: Any, parts_max: int) -> tuple[int, Callable[[Any], tuple[Any, Any]]]:
    """Return the bytes of the file of tokens, and a function. That takes an array of samples and returns two tables
    with a row for each: where its parts begin, and where they end. parts_max: most parts of a sample."""
    numpy = sys.modules["numpy"]
    shuffled, samples_at, documents = _indices(data_set)
    index = data_set.dataset.index
    token_bytes = int(index.dtype_size)
    extra = int(data_set.config.add_extra_token_to_sequence)

    def parts_of(samples: Any) -> tuple[Any, Any]:
        numbers = shuffled[samples].astype("int64")
        begin, end = samples_at[numbers].astype("int64"), samples_at[numbers + 1].astype("int64")
        count = min(parts_max, int((end[:, 0] - begin[:, 0]).max(initial=0)) + 1)
        places = begin[:, :1] + numpy.arange(count)
        is_part = places <= end[:, :1]
        document = documents[numpy.minimum(places, end[:, :1])]
        pointers = index.sequence_pointers[document]
        first = numpy.where(places == begin[:, :1], begin[:, 1:], 0)
        length = index.sequence_lengths[document].astype("int64")
        last = numpy.where(places == end[:, :1], numpy.minimum(end[:, 1:] + extra, length), length)
        starts = pointers + first * token_bytes
        return starts, numpy.where(is_part, pointers + last * token_bytes, starts)

    pointers, lengths = index.sequence_pointers, index.sequence_lengths
    size_bytes = int(pointers[-1]) + int(lengths[-1]) * token_bytes if len(pointers) else 0
    return size_bytes, parts_of


def _indices(data_set: Any) -> tuple[Any, Any, Any]:
    """Return the shuffle, the sample and the document index. The data set may not have opened them yet."""
    if data_set.shuffle_index is not None:
        return data_set.shuffle_index, data_set.sample_index, data_set.document_index
    paths = (
        data_set.path_to_shuffle_index,
        data_set.path_to_sample_index,
        data_set.path_to_document_index,
    )
    shuffled, samples_at, documents = (sys.modules["numpy"].load(path, mmap_mode="r") for path in paths)
    return shuffled, samples_at, documents
