"""Error-bounded coding of groups of frames, and the Zarr codec made of it.

``plain``
    Single codecs with a tolerance but no guarantee: SPERR, SZ3, ZFP, quantised spectrum,
    quantise + Lorenzo + pcodec, lossless.
``groups``
    A group of frames of one block: the cheapest mixture of typed records that meets a bound,
    verified value by value.
``spacetime``
    The Zarr v3 codec ``headrace.spacetime``: one Zarr chunk holds one group.
"""
