"""Bytes at rest: run folders, Zarr arrays and codecs, readers, errors."""
