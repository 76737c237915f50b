def seconds(*a): return None
