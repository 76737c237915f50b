from scaleout.measure.fsdp_memory import measure_fsdp as measure_fsdp
from scaleout.measure.ledger import watch as watch
from scaleout.measure.memory import measure as measure
from scaleout.measure.peak import matmul_rate as matmul_rate
from scaleout.measure.peak import repeat as repeat
