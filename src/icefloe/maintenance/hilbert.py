"""The place of chunks along a Hilbert curve: neighbours on it are neighbours in every dimension."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def hilbert_order(coords: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """The order of coordinates along a Hilbert curve through the smallest cube that holds them all."""
    count, ndim = coords.shape
    if count < 2 or ndim == 0:
        return np.arange(count)
    if ndim == 1:
        return np.argsort(coords[:, 0], kind="stable")
    bits = max(int(coords.max()).bit_length(), 1)
    axes = _to_transposed(coords.astype(np.uint32).copy(), bits)
    # The transposed index holds the bits of the place: the highest bit of every axis first, then the next.
    columns = []
    for bit in range(bits - 1, -1, -1):
        columns += [(axes[:, axis] >> np.uint32(bit)) & np.uint32(1) for axis in range(ndim)]
    packed = np.packbits(np.stack(columns, axis=1).astype(np.uint8), axis=1)
    return np.lexsort(packed.T[::-1])


def _to_transposed(axes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """Skilling's transform of coordinates, for all rows at once."""
    ndim = axes.shape[1]
    bit = np.uint32(1 << (bits - 1))
    while bit > 1:
        below = np.uint32(bit - 1)
        for axis in range(ndim):
            is_set = (axes[:, axis] & bit) != 0
            axes[is_set, 0] ^= below
            swap = (axes[~is_set, 0] ^ axes[~is_set, axis]) & below
            axes[~is_set, 0] ^= swap
            axes[~is_set, axis] ^= swap
        bit = np.uint32(bit >> 1)
    for axis in range(1, ndim):
        axes[:, axis] ^= axes[:, axis - 1]
    flips = np.zeros(len(axes), dtype=np.uint32)
    bit = np.uint32(1 << (bits - 1))
    while bit > 1:
        flips[(axes[:, ndim - 1] & bit) != 0] ^= np.uint32(bit - 1)
        bit = np.uint32(bit >> 1)
    axes ^= flips[:, None]
    return axes
