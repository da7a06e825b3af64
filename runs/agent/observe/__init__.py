"""What is watched besides a run's I/O: processes, files, network."""
