"""What a picture holds, read from its SVG."""

import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def marks(drawn: str) -> dict[str, ET.Element]:
    """{name: element} of what has a name in a picture; every name once."""
    found = [(one.get("data-mark"), one) for one in ET.fromstring(drawn).iter() if one.get("data-mark")]
    assert len({name for name, _ in found}) == len(found)
    return dict(found)


def number(mark: ET.Element, *names: str) -> list[float]:
    """Attributes of an element, as numbers."""
    return [float(mark.get(name)) for name in names]
