"""What a person runs: one module per flow, the command line, and the only code that imports Prefect."""
