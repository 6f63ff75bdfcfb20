"""Array kernels: NumPy reference, CuPy kernel and dispatch, one module per kernel family."""
