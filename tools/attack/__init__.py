"""Attacks on Feedline: random faults for as long as you like, and what must hold in spite of them."""
