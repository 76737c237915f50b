def held(order):
    n=0;out=[]
    kinds={a.kind for a in order}
    last="W" if "W" in kinds else "B"
    for a in order:
        n+= (a.kind=="F")-(a.kind==last); out.append(n)
    return out
