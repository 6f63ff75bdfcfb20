"""What a worker does: plain typed functions, one sub-package per method family."""
