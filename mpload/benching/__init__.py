"""What `mpload bench` measures: decoders, and the memory that a list of samples takes."""
