"""tpviz: tensor parallelism on ranks that run, with pictures drawn from the run."""
