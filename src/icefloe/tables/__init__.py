"""Arrays as tables: grids, selections, scans and metadata as Arrow columns, without any engine that runs them."""
