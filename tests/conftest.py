"""One thread: these tests are thousands of products of a few numbers, on which two threads wait for each other."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read by torch and NumPy's BLAS when they are first imported
