from scaleout.parallel.ddp import HOOKS as HOOKS
from scaleout.parallel.recipe import Training as Training
from scaleout.parallel.replicas import ROUTES as ROUTES
from scaleout.parallel.replicas import Replicas as Replicas
from scaleout.parallel.replicas import Settings as Settings
from scaleout.parallel.step import seconds_between as seconds_between
from scaleout.parallel.step import stamp as stamp
from scaleout.parallel.transformer import Transformer as Transformer
