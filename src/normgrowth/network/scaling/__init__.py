"""Curves against c: how a network approaches its limit when all parameters are multiplied by c."""
