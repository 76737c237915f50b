"""What always holds of the view `kernels`."""


def kernels(params, values, result):
    assert len(result["svg"]) < 12_000 and values["cycles"][values["tallest"]] == max(values["cycles"].values())
    assert values["tile_cycles"] >= values["cycles"][values["tallest"]] and 0 < values["share_percent"] <= 100 + 1e-9
    assert (values["fp8_percent"] is None) is ("off" in result["levers"].get("precision", {}))
    assert values["fp8_percent"] is None or 50 - 1e-9 <= values["fp8_percent"] <= 100 + 1e-9
    if values["published_percent"]:
        assert values["published_percent"] < values["share_percent"]  # measured kernels stay below the bound
