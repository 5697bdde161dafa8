"""L-GMML, GMML and LGMMLNet: local and global geometric-mean metrics."""
