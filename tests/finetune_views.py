"""What always holds of the view `finetune`, for the test of every view."""

import pytest

from scaleout.views.finetune.setting import METHODS, VERDICTS


def holds(params, values, result):
    """Of every setting: kinds add up to the peak, more is trained with more memory, and shorter sequences fit where
    longer ones do."""
    assert len(result["svg"]) < 25_000 and values["verdict"] in VERDICTS
    assert values["fits"] is (values["verdict"] == "fits") and values["fits"] is (
        values["peak_gb"] <= values["usable_gb"] and values["host_fits"]
    )
    assert sum(values["by_kind_gb"].values()) == pytest.approx(values["peak_gb"], rel=1e-12)
    by_method = values["by_method_gb"]
    assert by_method[params["method"]] == values["peak_gb"] and set(by_method) == set(METHODS)
    assert by_method["qlora"] <= 1.05 * by_method["lora"] or params["unquantized"] == "fp32"
    longest = list(values["longest"].values())
    assert longest == sorted(longest, reverse=True), "a larger micro-batch fits no longer sequence"
    assert (values["largest_batch"] >= params["batch"]) is values["fits"]
    assert values["seconds"] == pytest.approx(sum(values["parts"].values()))
    assert values["run"]["gpu_hours"] == pytest.approx(params["gpus"] * values["run"]["hours"])
    said = {"fits": "**it fits: ", "may fit": "**it may fit: ", "does not fit": "**it does not fit:** "}
    assert [verdict for verdict, words in said.items() if words in result["sentence"]] == [values["verdict"]]
