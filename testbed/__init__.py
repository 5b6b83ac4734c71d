"""A cluster on one machine: slow, hung and failing shared file systems, and data sets to put on them."""
