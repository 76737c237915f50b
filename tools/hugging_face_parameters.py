"""Parameters of Hugging Face's models, counted on models without contents that transformers builds of a config.json.

    python tools/hugging_face_parameters.py tests/published/hugging_face_parameters.json

counts the configurations of that file again and writes what it found into it. transformers is not among the book's
packages: install it with `pip install transformers`, in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def counted(config: dict) -> dict[str, int]:
    """Parameters of the model that transformers builds: "total", and "active", which one token passes through: of each
    module of routed experts the share that a router chooses."""
    import torch
    import transformers

    settings = transformers.AutoConfig.for_model(**config)
    architectures = config.get("architectures")
    with torch.device("meta"):
        if architectures:
            model = getattr(transformers, architectures[0])(settings)
        else:
            model = transformers.AutoModelForCausalLM.from_config(settings)
    total = sum(p.numel() for p in model.parameters())
    idle = 0
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            size = sum(p.numel() for p in module.parameters())
            idle += size - size * settings.num_experts_per_tok // module.num_experts
    return {"total": total, "active": total - idle}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import transformers
    except ModuleNotFoundError:
        print("transformers is not installed: pip install transformers, in an environment of its own", file=sys.stderr)
        return 2
    path = Path(sys.argv[1])
    table = json.loads(path.read_text(encoding="utf-8"))
    table["transformers"] = transformers.__version__
    for name, row in table["models"].items():
        row |= counted(row["config"])
        print(f"{name:32}{row['total']:20,}{row['active']:20,}", flush=True)
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table["models"].items())
    rest = json.dumps({key: value for key, value in table.items() if key != "models"}, indent=1)
    path.write_text(rest[: -len("\n}")] + ',\n "models": {\n' + rows + "\n }\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
