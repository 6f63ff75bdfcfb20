"""Map the top-level folders to ``headrace.*``; sub-folders are found by themselves."""

from setuptools import find_packages, setup

ROOTS = ("flows", "tasks", "gpu", "storage", "deployments")

setup(
    package_dir={f"headrace.{root}": root for root in ROOTS},
    packages=[
        f"headrace.{name}" for root in ROOTS for name in (root, *(f"{root}.{sub}" for sub in find_packages(root)))
    ],
)
