"""Attacks Feedline with random faults, and checks what must hold in spite of them."""
