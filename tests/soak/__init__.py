"""What is tried for an hour by `make soak`, and for seconds by `make test`: one file for each kind of trouble."""
