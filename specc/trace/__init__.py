"""Trace files (`specc run --trace FILE`): their schema, reading, comparing, summing up and exporting. See TRACE.md."""
