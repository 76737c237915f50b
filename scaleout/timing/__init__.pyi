from scaleout.timing.ddp import BUCKET_CAP as BUCKET_CAP
from scaleout.timing.ddp import FIRST_BUCKET_CAP as FIRST_BUCKET_CAP
from scaleout.timing.ddp import Layer as Layer
from scaleout.timing.ddp import buckets as buckets
from scaleout.timing.job import step as step
from scaleout.timing.job import step_on as step_on
from scaleout.timing.job import update_bytes as update_bytes
