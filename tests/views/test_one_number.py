"""What a view says of a job is what the doors say of it: seconds and MFU, exactly, whatever is chosen."""

from view_settings import by_chance

from scaleout import views
from scaleout.timing.job import step
from scaleout.views import ddp


def test_data_parallelism():
    for params in by_chance("ddp", 40, 31):
        values = views.render("ddp", params, advise=False)["values"]
        found = step(ddp.setting_from({**views.defaults("ddp"), **params}).job)
        assert (values["step_seconds"], values["mfu"]) == (found.seconds, found.mfu), params
        assert values["update_seconds"] == found.parts["update"], params
        assert values["communication_seconds"] == found.communication, params
