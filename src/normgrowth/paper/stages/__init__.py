"""What is run to judge the paper: each stage is a function that returns records, one file for what belongs together."""
