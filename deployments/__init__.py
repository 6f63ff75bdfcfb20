"""Files that put flows onto work pools and clusters; package data."""
