"""A pair of hosts under trouble: does anything acknowledged get lost, and do two hosts ever act at the same time?"""
