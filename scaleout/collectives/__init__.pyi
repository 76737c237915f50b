from scaleout.collectives.alpha_beta import bus_bandwidth as bus_bandwidth
from scaleout.collectives.alpha_beta import bus_factor as bus_factor
from scaleout.collectives.alpha_beta import cost as cost
from scaleout.collectives.nccl import choices as choices
from scaleout.collectives.nccl import price as price
from scaleout.collectives.nccl import textbook as textbook
