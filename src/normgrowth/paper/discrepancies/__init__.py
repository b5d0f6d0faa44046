"""Errata: where the paper is wrong as printed. Departures: where the code of its authors does something else."""
