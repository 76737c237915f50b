from scaleout.records.results import Record as Record
