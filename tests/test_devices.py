# SPDX-License-Identifier: Apache-2.0
"""Batches on their way to a device: the same numbers, and memory that is locked once."""

import numpy as np
import pytest
import torch

from veldt.devices import Download, Upload
from veldt.types import Batch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def arrays(seed=0):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (3, 700, 1000), dtype=np.uint8)
    return {"observation": pixels, "reward": random.normal(size=(3, 5)).astype(np.float32)}


def test_on_the_host_nothing_is_copied():
    batch = Batch(arrays(), memory_stays=True)
    tensors = Upload(torch.device("cpu"))(batch)
    batch.arrays["reward"][0, 0] = 7.0
    assert float(tensors["reward"][0, 0]) == 7.0


@needs_cuda
@pytest.mark.parametrize("stays", [False, True])
def test_what_arrives_is_what_was_sent(stays):
    upload, batch = Upload(torch.device("cuda")), Batch(arrays(), memory_stays=stays)
    for seed in range(3):
        for name, array in arrays(seed).items():
            batch.arrays[name][:] = array
        tensors = upload(batch)
        torch.cuda.synchronize()
        for name, array in batch.arrays.items():
            np.testing.assert_array_equal(tensors[name].cpu().numpy(), array)
    assert len(upload._locked) == stays  # the large array, once; never the small one
    upload.close()
    assert not upload._locked


@needs_cuda
def test_neighbours_on_one_page_are_both_sent():
    memory = np.arange(2 * 3_000_001, dtype=np.uint8)
    halves = [memory[:3_000_001], memory[3_000_001:]]
    upload = Upload(torch.device("cuda"))
    for half in halves:
        sent = upload(Batch({"observation": half}, memory_stays=True))["observation"]
        np.testing.assert_array_equal(sent.cpu().numpy(), half)
    assert len(upload._locked) == 1
    upload.close()


def test_a_vector_of_the_host_is_read_where_it_lies():
    vector = torch.arange(5.0)
    seen = Download(torch.device("cpu"))(vector)
    vector[2] = 9.0
    np.testing.assert_array_equal(seen, [0, 1, 9, 3, 4])


@needs_cuda
def test_a_vector_comes_from_the_device_into_the_same_memory_each_time():
    download, vector = Download(torch.device("cuda")), torch.arange(1000.0, device="cuda")
    first = download(vector)
    np.testing.assert_array_equal(first, np.arange(1000))
    second = download(vector + 1)
    np.testing.assert_array_equal(second, np.arange(1, 1001))
    assert first.ctypes.data == second.ctypes.data
