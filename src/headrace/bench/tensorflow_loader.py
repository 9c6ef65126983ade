"""Read tfrecords by TensorFlow's own reader: in threads of the trainer, 256 KiB at a time, one file per thread.

MLPerf Storage's code does the same (DLIO, dlio_benchmark/reader/tf_reader.py). loaders.py uses torch's DataLoader
instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import torch

from headrace.bench.loader_spec import LoaderSpec
from headrace.bench.loaders import Batch
from headrace.bench.storage import DirectoryStorage

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before its import, or it prints a greeting
NOTHING = torch.empty((0, 0), dtype=torch.uint8)
IMAGE_BYTES = 150_528
"""Bytes of resnet50's decoded sample: record_length_bytes_resize of MLPerf Storage. cosmoflow's samples keep their
size."""
SHUFFLED_SAMPLES = 2
"""The shuffle_size of MLPerf Storage's cosmoflow. resnet50's samples stay in order."""


class TensorFlowRecords:
    """Yield batches of whole tf.train.Examples, parsed. A batch that can't be read counts as that many failed reads."""

    def __init__(self, feed: LoaderSpec) -> None:
        import tensorflow

        self._feed, self._epoch, self._tf = feed, 1, tensorflow
        self._place = DirectoryStorage(feed.where.root)
        side = math.isqrt(IMAGE_BYTES if feed.streams else round(feed.data.sample_bytes))
        self._image = tensorflow.zeros((side, side), tensorflow.uint8)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        each, errors = iter(self._batches()), self._tf.errors.OpError
        for _ in range(self._feed.steps):
            try:
                size, _image = next(each)
                yield Batch(int(size), 0, NOTHING)
            except StopIteration:
                yield Batch(0, self._feed.batch, NOTHING, "the files end too early")
            except errors as error:
                yield Batch(0, self._feed.batch, NOTHING, str(error)[:300])

    def _batches(self) -> Any:
        feed, tf = self._feed, self._tf
        names = [self._place.source(feed.data.name(int(number))) for number in feed.order(self._epoch)]
        read = tf.data.TFRecordDataset(names, num_parallel_reads=max(1, feed.readers))
        if not feed.streams:
            read = read.shuffle(SHUFFLED_SAMPLES, seed=feed.seed)
        parsed = read.batch(feed.batch, drop_remainder=True).map(
            lambda records: tf.py_function(self._parsed, [records], [tf.int64, tf.uint8]),
            num_parallel_calls=max(1, feed.readers) if feed.streams else 1,  # its computation_threads
        )
        return parsed.prefetch(feed.prefetch)

    def _parsed(self, serialized: Any) -> Any:
        """Return the bytes of the samples and a tensor of the size that a trainer gets.

        The bytes include the framing, as in formats.py. A thread of TensorFlow calls Python for each batch, as in DLIO.
        In steps of some milliseconds that costs a share of the time (docs/decisions/0023).
        """
        tf = self._tf
        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "size": tf.io.FixedLenFeature([], tf.int64),
        }
        tf.io.parse_example(serialized, features)
        return tf.reduce_sum(tf.cast(tf.strings.length(serialized), tf.int64)), self._image
